"""The same front door with the hands on a server: sandbox, retry and patches hold there too."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import AgentShell, AsyncWorkspace
from handrail.orchestrator.approvals import Answer, Choice, Kind, Question
from handrail.unified_exec.tools import ToolFailed

ADD = "*** Begin Patch\n*** Add File: {}\n+hi\n*** End Patch\n"
SERVER = "stdio:" + shlex.join([sys.executable, "-m", "handrail", "serve", "--listen", "stdio"])


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(os.path.realpath(name))
        (folder / "work").mkdir()
        yield folder


class Scribe:
    def __init__(self, choice: Choice) -> None:
        self.questions: list[Question] = []
        self._choice = choice

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        return Answer(self._choice)


def played(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, 50))


def shell(base: Path, scribe: Scribe, policy: str = "on-request") -> AgentShell:
    return AgentShell(AsyncWorkspace(base / "work", at=SERVER), approver=scribe, policy=policy)


def test_commands_are_held_and_offered_the_narrow_way(base: Path) -> None:
    async def main() -> None:
        scribe = Scribe(Choice.GRANT_AND_RERUN)
        async with shell(base, scribe, "on-failure") as hands:
            answer = await hands.exec_command(f"touch in; touch {base}/out && echo made")
            assert answer.output == "made\n", answer.text
            (question,) = scribe.questions
            assert question.grant == str(base)

    played(main())
    assert (base / "out").exists()


def test_patches_are_written_under_the_sandbox_of_that_machine(base: Path) -> None:
    async def main() -> None:
        scribe = Scribe(Choice.DENY)
        async with shell(base, scribe) as hands:
            assert "A sub/a" in (await hands.apply_patch(ADD.format("sub/a"))).text
            (base / "work" / "way").symlink_to(base)
            with pytest.raises(ToolFailed):
                await hands.apply_patch(ADD.format("way/x"))
            with pytest.raises(ToolFailed, match="patch rejected by user"):
                await hands.apply_patch(ADD.format("../out"))
            assert [q.kind for q in scribe.questions] == [Kind.RETRY, Kind.PATCH]

    played(main())
    assert (base / "work" / "sub" / "a").read_text() == "hi\n"
    assert sorted(os.listdir(base)) == ["work"]


@pytest.mark.parametrize("at", [SERVER, None])
def test_a_moved_file_keeps_its_mode(base: Path, at: str | None) -> None:
    work = base / "work"
    (work / "tool").write_text("a\n")
    (work / "tool").chmod(0o755)
    (work / "link").symlink_to("tool")

    async def main() -> None:
        for name in ("tool", "link"):
            text = f"*** Update File: {name}\n*** Move to: sub/{name}\n-a\n+{name}"
            async with AgentShell(
                AsyncWorkspace(work, at=at), approver=Scribe(Choice.DENY), policy="on-request"
            ) as hands:
                await hands.apply_patch(f"*** Begin Patch\n{text}\n*** End Patch\n")
            (work / "tool").write_text("a\n")

    played(main())
    moved = work / "sub" / "tool"
    assert (moved.read_text(), moved.stat().st_mode & 0o777) == ("tool\n", 0o755)
    assert (work / "sub" / "link").read_text() == "link\n"
    assert not (work / "sub" / "link").is_symlink()
    assert (work / "tool").read_text() == "a\n"
