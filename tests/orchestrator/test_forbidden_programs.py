"""Programs that are forbidden as a whole, in real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from handrail import AsyncWorkspace
from handrail.agent.shell import AgentShell
from handrail.errors import HandrailError
from handrail.executor.base import SpawnRequest
from handrail.executor.local import LocalExecutor
from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.orchestrator.call import Call
from handrail.orchestrator.one_shot import Command, run_command
from handrail.orchestrator.run import Orchestrator
from handrail.orchestrator.settings import Settings
from handrail.policy.load import parse_rules
from handrail.sandbox.profile import Intent

SERVER = "stdio:" + shlex.join([sys.executable, "-m", "handrail", "serve", "--listen", "stdio"])
RULES = parse_rules('prefix_rule(["zap"], decision="forbidden")\n', "r")
#: Scripts that were there before, so that no reader of the command knows what they do.
SCRIPTS = ("sh s", "sh ../bin/zap x", "cat ../bin/zap > q; sh q", "cp ../bin/zap q; ./q", "./hard")


@contextlib.asynccontextmanager
async def _local() -> AsyncIterator[LocalExecutor]:
    executor = LocalExecutor()
    try:
        yield executor
    finally:
        await executor.close()


class No:
    async def ask(self, question: Question) -> Answer:
        return Answer(Choice.DENY)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace with a program beside it that leaves a mark in it.

    Not below /tmp or /var/tmp, which commands do not see: they have their own.
    """
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:
        base = Path(os.path.realpath(name))
        work, bin_ = base / "work", base / "bin"
        work.mkdir()
        bin_.mkdir()
        for program, mark in (("zap", "ran"), ("other", "other")):
            (bin_ / program).write_text(f"#!/bin/sh\necho x > {work}/{mark}\n")
            (bin_ / program).chmod(0o755)
        (work / "s").write_text("zap x\n")
        os.link(bin_ / "zap", work / "hard")
        monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
        yield work


def test_a_patch_cannot_move_it_nor_a_link_uncover_it(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commands can write, its name is theirs to change; the file stays covered."""
    place, real = work / "tools", work / "real"
    place.mkdir()
    real.write_text((work.parent / "bin" / "zap").read_text())
    real.chmod(0o755)
    (place / "zap").symlink_to(real)
    (work / "t").write_text("./real; sh real; sh moved\n")
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    move = (
        "*** Begin Patch\n*** Update File: real\n*** Move to: moved\n@@\n-#!/bin/sh\n+#! /bin/sh\n"
    )

    async def main() -> None:
        sandbox = "workspace-write"
        async with AgentShell(str(work), approver=No(), rules=RULES, sandbox=sandbox) as shell:
            await shell.exec_command("rm tools/zap; ln -s /bin/true tools/zap")
            with contextlib.suppress(HandrailError):
                await shell.call("apply_patch", {"patch": move + "*** End Patch"})
            await shell.exec_command("sh t")
            assert not (work / "ran").exists()
            written = "*** Begin Patch\n*** Add File: new\n+x\n*** End Patch"
            await shell.call("apply_patch", {"patch": written})
            assert (work / "new").exists()

    asyncio.run(asyncio.wait_for(main(), 50))


@pytest.mark.parametrize("call", ["exec_command", "run"])
def test_no_script_of_an_agent_runs_it(work: Path, call: str) -> None:
    async def main() -> None:
        async with AgentShell(str(work), approver=No(), rules=RULES) as shell:
            called = shell.run if call == "run" else shell.exec_command
            for script in SCRIPTS:
                with contextlib.suppress(HandrailError):  # what is asked is answered with no
                    await called(script)
                assert not (work / "ran").exists(), script
            answer = await shell.exec_command("other; echo $?")
            assert answer.output.strip() == "0"
            assert (work / "other").exists()

    asyncio.run(asyncio.wait_for(main(), 50))


def test_a_program_that_appears_later_is_covered(work: Path) -> None:
    real = work.parent / "bin" / "zap"
    text = real.read_text()
    real.unlink()
    (work / "hard").unlink()

    async def main() -> None:
        async with AgentShell(str(work), approver=No(), rules=RULES) as shell:
            await shell.exec_command("true")
            real.write_text(text)
            real.chmod(0o755)
            with contextlib.suppress(HandrailError):  # what is asked is answered with no
                await shell.exec_command("sh s")
            assert not (work / "ran").exists()

    asyncio.run(asyncio.wait_for(main(), 50))


def test_one_shot_commands_are_behind_it_too(work: Path) -> None:
    async def main() -> None:
        async with _local() as executor:
            house = Orchestrator(Settings(str(work), policy=RULES), No())
            call = Call("c", ("/bin/sh", "s"), str(work))
            with contextlib.suppress(HandrailError):  # what is asked is answered with no
                await run_command(house, executor, Command(call, dict(os.environ)))

    asyncio.run(asyncio.wait_for(main(), 50))
    assert not (work / "ran").exists()


def test_another_machine_covers_files_of_that_name(work: Path) -> None:
    (work / "hard").unlink()
    program = work.parent / "bin" / "zap"
    (work / "s").write_text(f"{program} x\n")
    rules = parse_rules(f'prefix_rule(["{program}"], decision="forbidden")\n', "r")

    async def main() -> None:
        place = AsyncWorkspace(work, at=SERVER)
        async with AgentShell(place, approver=No(), rules=rules) as shell:
            answer = await shell.exec_command(f"{work.parent}/bin/other; ls")
            assert "other" in answer.output
            with contextlib.suppress(HandrailError):
                await shell.exec_command("sh s")

    asyncio.run(asyncio.wait_for(main(), 50))
    assert not (work / "ran").exists()


def test_without_such_a_rule_the_request_is_the_same(work: Path) -> None:
    rules = parse_rules('prefix_rule(["zap", "x"], decision="forbidden")\n', "r")

    async def main() -> None:
        async with _local() as executor:
            house = Orchestrator(Settings(str(work), policy=rules), No())
            request = SpawnRequest("p", ("true",), str(work), {}, sandbox=Intent())
            same = await house.wall.around(request, house.settings, executor, local=True)
            assert same is request

    asyncio.run(main())
