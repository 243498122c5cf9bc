"""Limits of a whole tree where there is no control group: near, far, sandboxed, for an agent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import AgentShell, CommandFailed, ExitKind, Limits, Workspace
from tests.cli.user import HANDRAIL
from tests.support.servers import server_process

GREEDY = [sys.executable, "-c", "import time; x = bytearray(200_000_000); time.sleep(600)"]
MANY = "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait"


@pytest.fixture(autouse=True)
def _without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDRAIL_TREES", "walk")


@pytest.fixture(params=["near", "far"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | None]:
    if request.param == "near":
        yield None
        return
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state, "--trees", "walk") as server:
        yield server.url


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_which_limit_it_was(at: str | None, sandbox: str, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=at, sandbox=sandbox) as ws:  # type: ignore[arg-type]
        greedy = ws.run(GREEDY, limits=Limits(memory=64 << 20)).exit
        assert greedy is not None
        assert (greedy.kind, greedy.limit) == (ExitKind.OUT_OF_MEMORY, "memory")
        many = ws.run(MANY, limits=Limits(processes=6))
        assert many.exit is not None
        assert (many.exit.kind, many.exit.limit) == (ExitKind.EVICTED, "processes")
        with pytest.raises(CommandFailed, match="beyond its limit of processes"):
            many.check()
        assert ws.run("exit 4", limits=Limits(processes=60, memory=1 << 30)).exit_code == 4


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
    assert (told["kind"], told["limit"], done.returncode) == ("outOfMemory", "memory", 137)
    done = subprocess.run(
        [*HANDRAIL, "doctor", "--json"], check=False, capture_output=True, timeout=50
    )
    (limits,) = (f for f in json.loads(done.stdout)["findings"] if f["subject"] == "limits")
    assert "memory and processes by looking at /proc" in limits["what"]
