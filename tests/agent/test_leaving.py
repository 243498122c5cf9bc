"""What leaves the sandbox: by a rule, by a patch, by a guess."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.agent.shell import AgentShell
from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.policy.load import parse_rules

RULE = 'prefix_rule(["git", ["status", "log"]], sandbox="off")'


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory outside of /tmp, which commands may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name).resolve()


@pytest.fixture
def work(base: Path) -> Path:
    folder = base / "work"
    folder.mkdir()
    return folder


def calls(work: Path, *commands: dict[str, str], path: str = "/usr/bin:/bin") -> list[str]:
    """The texts of these commands under the rule, with nothing to ask."""

    async def main() -> list[str]:
        rules = parse_rules(RULE, "t.rules")
        async with AgentShell(str(work), rules=rules) as shell:
            return [(await shell.call("exec_command", one)).text for one in commands]

    before = os.environ["PATH"]
    os.environ["PATH"] = path
    try:
        return asyncio.run(main())
    finally:
        os.environ["PATH"] = before


def test_a_program_that_a_command_wrote_does_not_leave_by_a_rule(base: Path, work: Path) -> None:
    (work / "bin").mkdir()
    told = base / "told"
    write = f"printf '#!/bin/sh\\necho ran; touch {told}\\n' > bin/git; chmod +x bin/git"
    texts = calls(work, {"cmd": write}, {"cmd": "git status"}, path=f"{work}/bin:/usr/bin:/bin")
    assert "ran" in texts[1]
    assert not told.exists()


def asked(work: Path, *commands: str, path: str, between: str = ":") -> list[Question]:
    """What is asked about commands that want to leave, which get a yes for the session."""
    questions: list[Question] = []

    def approve(question: Question) -> Answer:
        questions.append(question)
        return Answer(Choice.APPROVE_FOR_SESSION)

    async def main() -> None:
        async with AgentShell(str(work), approver=approve) as shell:
            for command in commands:
                leave = {"cmd": command, "sandbox_permissions": "require_escalated"}
                await shell.call("exec_command", leave)
                await shell.call("exec_command", {"cmd": between})

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        asyncio.run(main())
    return questions


@pytest.mark.parametrize("command", ["tool --version", "./bin/tool", "env tool | cat"])
def test_a_question_says_that_commands_can_write_the_program(command: str, work: Path) -> None:
    (work / "bin").mkdir()
    (work / "bin/tool").write_text("#!/bin/sh\n")
    (work / "bin/tool").chmod(0o755)
    (question,) = asked(work, command, path=f"{work}/bin:/usr/bin:/bin")
    assert question.outside
    (note,) = question.notes
    assert f"is {work}/bin/tool, which sandboxed commands can write" in note
    (plain,) = asked(work, "ls | wc -l", path=f"{work}/bin:/usr/bin:/bin")
    assert plain.notes == ()


def test_a_yes_for_the_session_ends_when_a_command_writes_the_program(work: Path) -> None:
    (work / "tool").write_text("#!/bin/sh\necho one\n")
    (work / "tool").chmod(0o755)
    path = "/usr/bin:/bin"
    assert len(asked(work, "./tool", "./tool", path=path)) == 1
    changed = asked(work, "./tool", "./tool", path=path, between="echo echo two >> tool")
    assert len(changed) == 2


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_a_repository_that_a_command_made_runs_nothing_outside(base: Path, work: Path) -> None:
    told = base / "told"
    make = f"git init -q n && git -C n config core.fsmonitor 'touch {told};:'"
    calls(work, {"cmd": make}, {"cmd": "git status", "workdir": str(work / "n")})
    assert (work / "n" / ".git" / "config").exists()
    assert not told.exists()
    # Elsewhere the rule holds: what is written there shows that the sandbox was left.
    elsewhere = base / "elsewhere"
    subprocess.run(["git", "init", "-q", str(elsewhere)], check=True)
    config = ["git", "-C", str(elsewhere), "config", "core.fsmonitor", f"touch {told};:"]
    subprocess.run(config, check=True)
    calls(work, {"cmd": "git status", "workdir": str(elsewhere)})
    assert told.exists()


def test_a_patch_is_verified_as_commands_see_the_files(work: Path) -> None:
    """The sandbox has a /dev/shm of its own, so a guess at a file there tells nothing."""
    hidden = Path("/dev/shm") / f"handrail-{secrets.token_hex(8)}"
    hidden.write_text("s3cret\n")
    update = "*** Begin Patch\n*** Update File: {}\n@@\n-{}\n+x\n*** End Patch\n"

    class Yes:
        async def ask(self, question: Question) -> Answer:
            return Answer(Choice.APPROVE)

    async def main() -> set[str]:
        said = set()
        async with AgentShell(str(work), approver=Yes()) as shell:
            for guess in ("s3cret", "wrong"):
                patch = update.format(hidden, guess)
                said.add((await shell.call("apply_patch", {"patch": patch})).text)
        return said

    try:
        assert len(asyncio.run(main())) == 1
        assert hidden.read_text() == "s3cret\n"
    finally:
        hidden.unlink()


def test_what_leaves_by_a_rule_starts_no_program_that_a_command_wrote(
    base: Path, work: Path
) -> None:
    """The program is the user's own; those it starts by their names are looked for in PATH."""
    told, own = base / "told", base / "own"
    own.mkdir(mode=0o755)
    (work / "bin").mkdir()
    (own / "git").write_text(f"#!/bin/sh\ntouch {base}/left\nmissing-tool\n")
    (own / "git").chmod(0o755)
    write = f"printf '#!/bin/sh\\ntouch {told}\\n' > bin/missing-tool; chmod +x bin/missing-tool"
    path = f"{own}:/usr/bin:/bin:{work}/bin:."
    texts = calls(work, {"cmd": write}, {"cmd": "git log", "workdir": str(base)}, path=path)
    assert (base / "left").exists()
    assert "missing-tool" in texts[1]
    assert not told.exists()
