"""Limits of a whole tree where there is no control group: near, far, sandboxed, for an agent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from handrail import AgentShell, CommandFailed, ExecutorSpawnFailed, ExitKind, Limits, Workspace
from tests.cli.user import HANDRAIL

GREEDY = [sys.executable, "-c", "import time; x = bytearray(200_000_000); time.sleep(600)"]
MANY = "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait"


@pytest.fixture(autouse=True)
def _without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDRAIL_TREES", "walk")


@pytest.fixture
def server_options() -> tuple[str, ...]:
    return ("--trees", "walk")


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_which_limit_it_was(at: str | None, sandbox: str, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=at, sandbox=sandbox) as ws:  # type: ignore[arg-type]
        greedy = ws.run(GREEDY, limits=Limits(memory=64 << 20)).exit
        assert greedy is not None
        assert (greedy.kind, greedy.limit) == (ExitKind.LIMIT_EXCEEDED, "memory")
        many = ws.run(MANY, limits=Limits(processes=6))
        assert many.exit is not None
        assert (many.exit.kind, many.exit.limit) == (ExitKind.LIMIT_EXCEEDED, "processes")
        with pytest.raises(CommandFailed, match="beyond its limit of processes"):
            many.check()
        assert ws.run("exit 4", limits=Limits(processes=60, memory=1 << 30)).exit_code == 4


STUBBORN = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_limits_that_the_kernel_keeps(at: str | None, sandbox: str, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=at, sandbox=sandbox) as ws:  # type: ignore[arg-type]
        ends = {
            "warned": ws.run("while :; do :; done", limits=Limits(cpu_seconds=1)).exit,
            "stubborn": ws.run([sys.executable, "-c", STUBBORN], limits=Limits(cpu_seconds=1)).exit,
            "file": ws.run(
                "head -c 9000 /dev/zero > big; exit $?", limits=Limits(file_size=5000)
            ).exit,
        }
        assert {name: (end.kind, end.limit) for name, end in ends.items() if end is not None} == {
            "warned": (ExitKind.LIMIT_EXCEEDED, "cpu_seconds"),
            "stubborn": (ExitKind.LIMIT_EXCEEDED, "cpu_seconds"),
            "file": (ExitKind.LIMIT_EXCEEDED, "file_size"),
        }
        # The same signals from elsewhere are no limits.
        sent = ws.run("kill -XCPU $$", limits=Limits(file_size=5000)).exit
        assert sent is not None
        assert (sent.kind, sent.signal, sent.limit) == (ExitKind.SIGNALED, "SIGXCPU", None)
        for script in ("kill -XCPU $$", "exit 152", "kill -KILL $$"):
            unused = ws.run(script, limits=Limits(cpu_seconds=50)).exit
            assert unused is not None
            assert (unused.kind is ExitKind.LIMIT_EXCEEDED, unused.limit) == (False, None), script


def test_a_sandbox_that_cannot_be_set_up_under_a_limit_says_so(tmp_path: Path) -> None:
    with (
        Workspace(tmp_path) as ws,
        pytest.raises(ExecutorSpawnFailed, match=r"the limits \(open_files=5\) hold for"),
    ):
        ws.run("true", limits=Limits(open_files=5))


def test_commands_of_an_agent_have_the_limits_of_its_workspace(tmp_path: Path) -> None:
    async def main() -> int:
        where = Workspace(tmp_path, limits=Limits(open_files=40))
        async with AgentShell(where, policy="never") as shell:
            return int((await shell.run("ulimit -n")).stdout)

    assert asyncio.run(main()) == 40


def test_the_command_line_and_the_doctor_say_it(tmp_path: Path) -> None:
    words = [*HANDRAIL, "run", "--json", "--limit", "memory=64MiB", "--", *GREEDY]
    done = subprocess.run(
        words, check=False, cwd=tmp_path, input=b"", capture_output=True, timeout=50
    )
    told = json.loads(done.stdout)["exit"]
    assert (told["kind"], told["limit"], done.returncode) == ("limitExceeded", "memory", 137)
    done = subprocess.run(
        [*HANDRAIL, "doctor", "--json"], check=False, capture_output=True, timeout=50
    )
    (limits,) = (f for f in json.loads(done.stdout)["findings"] if f["subject"] == "limits")
    assert "memory and processes by looking at /proc" in limits["what"]
