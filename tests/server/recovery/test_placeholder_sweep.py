"""What sandboxes of a killed server leave in a workspace goes while the next one lives."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import private_places
from handrail.sandbox.bwrap.found_instance import FoundSandbox
from handrail.sandbox.profile import PROTECTED_NAMES
from handrail.server.recovery.placeholder_sweep import PlaceholderSweep
from tests.sandbox.warm.test_server_crash import Client
from tests.support.eventually import eventually, spin
from tests.support.processes import nothing_left, reaping
from tests.support.servers import ServerProcess

#: Runs until it is told.
WAITS = "until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture(params=["server", "both"])
def after_a_kill(tmp_path: Path, ws: Path, request: pytest.FixtureRequest) -> Iterator[NextServer]:
    """The next server, with a command of one that was killed, perhaps together with its keeper."""
    both = request.param == "both"
    server = ServerProcess(tmp_path / "state")
    with nothing_left(), reaping(lambda: server.pid):
        try:
            client = Client(server.url)
            process = client.start(ws, "/bin/sh", "-c", WAITS)
            names = sorted(os.fsdecode(name) for name in PROTECTED_NAMES)
            assert sorted(os.listdir(ws)) == names
            keeper = server.keeper()
            if both:
                os.kill(keeper, signal.SIGSTOP)  # it ends nothing
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            if both:
                os.kill(keeper, signal.SIGKILL)
            server.close()
            assert sorted(os.listdir(ws)) == names
            server = ServerProcess(tmp_path / "state")
            yield NextServer(server, None if both else Client(server.url, client.session), process)
        finally:
            server.stop()
            server.close()


class NextServer:
    """The next server; its client, if it has taken over the command; and the command."""

    def __init__(self, server: ServerProcess, client: Client | None, process: str) -> None:
        self.server = server
        self.client = client
        self.process = process


def test_when_the_command_ends(after_a_kill: NextServer, ws: Path) -> None:
    """By itself, or because the next server ends it."""
    told = []
    if after_a_kill.client is not None:
        assert (ws / ".git").is_dir()
        told = ["go"]
        (ws / "go").touch()
        assert after_a_kill.client.ended(after_a_kill.process) == 0
    eventually(lambda: os.listdir(ws) == told, "the names are gone")


def test_when_the_next_server_stops(after_a_kill: NextServer, ws: Path) -> None:
    after_a_kill.server.stop()
    assert os.listdir(ws) == []


#: Holds a placeholder until it is killed.
HOLDS = """
import os, signal, sys
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
lease = PlaceholderRegistry(sys.argv[1]).acquire([Placeholder(os.fsencode(sys.argv[2]), True)])
print("held", flush=True)
signal.pause()
"""


@pytest.fixture
def holder(
    tmp_path: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that holds ``.git``; its records are out of reach of all other programs."""
    records = str(tmp_path / "records")
    monkeypatch.setattr(private_places, "covers_directory", lambda: records)
    argv = [sys.executable, "-c", HOLDS, records, str(ws / ".git")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


async def test_a_found_sandbox_that_ends_has_them_swept(
    holder: subprocess.Popen[bytes], ws: Path
) -> None:
    loop = asyncio.get_running_loop()
    inside = FoundSandbox(holder.pid, PlaceholderSweep(loop).soon, tty=False)
    holder.kill()
    holder.wait()
    assert os.listdir(ws) == [".git"]
    ended = asyncio.Event()
    inside.settle(loop, ended.set)
    await ended.wait()
    await spin(lambda: os.listdir(ws) == [])


async def test_a_sweep_waits_for_the_process_that_holds_them(
    holder: subprocess.Popen[bytes], ws: Path
) -> None:
    sweep = PlaceholderSweep(asyncio.get_running_loop())
    sweep.soon(os.pidfd_open(holder.pid))
    await asyncio.sleep(0)  # it begins
    holder.kill()
    await sweep.finish()
    assert os.listdir(ws) == []


async def test_nothing_is_swept_for_a_server_that_takes_over_nothing(
    holder: subprocess.Popen[bytes], ws: Path
) -> None:
    holder.kill()
    holder.wait()
    await PlaceholderSweep(asyncio.get_running_loop()).finish()
    assert os.listdir(ws) == [".git"]
