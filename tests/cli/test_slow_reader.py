"""Commands whose output is read slowly: they wait, nothing is lost, and they can be ended."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.user import HANDRAIL
from tests.support.servers import ServerProcess

MIB = 1 << 20
#: Writes so many pieces of 64 KiB, and tells a file how far it is.  SIGINT ends it as the kernel
#: does: with Python's own handler such a program now and then goes on after SIGINT, also without
#: handrail (8 of 389 did), probably because the KeyboardInterrupt is lost while it opens the file.
FLOOD = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
data = bytes(range(256)) * 256
for done in range(int(sys.argv[1])):
    os.write(1, b"%8d" % done + data[8:])
    open("done", "w").write(str(done))
"""
SIZE = 400


@pytest.fixture(params=["here", "there"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The words of a ``run`` that has to copy, near and far."""
    if request.param == "here":
        yield ["--env", "A=1"]
        return
    server = ServerProcess(tmp_path / "state")
    yield ["--at", server.url, "--cwd", str(tmp_path)]
    server.stop()
    server.close()


def flood(place: list[str], size: int) -> list[str]:
    return [*HANDRAIL, "run", *place, "--", sys.executable, "-c", FLOOD, str(size)]


def expected(size: int) -> str:
    data = bytes(range(256)) * 256
    found = hashlib.sha256()
    for done in range(size):
        found.update(b"%8d" % done + data[8:])
    return found.hexdigest()


def until_still(marker: Path) -> int:
    """Wait until the command does not get on any more, though nothing was read; how far it is."""
    before = ""
    while True:
        select.select([], [], [], 0.5)
        now = marker.read_text() if marker.exists() else ""
        if now and now == before:
            return int(now)
        before = now


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_lost_and_little_is_held(place: list[str], tmp_path: Path) -> None:
    with subprocess.Popen(
        flood(place, SIZE), cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert until_still(tmp_path / "done") < SIZE // 2
        assert resident(running.pid) < 100 * MIB
        found = hashlib.sha256()
        while piece := running.stdout.read(MIB // 4):
            found.update(piece)
        assert running.wait(30) == 0
    assert found.hexdigest() == expected(SIZE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_can_be_ended_meanwhile(place: list[str], number: int, tmp_path: Path) -> None:
    with subprocess.Popen(
        flood(place, 1_000_000), cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        until_still(tmp_path / "done")
        running.send_signal(number)
        if number == signal.SIGINT:  # the command's own end; what it wrote is for who reads
            running.stdout.read()
        assert running.wait(30) == 128 + number


def test_logs_and_attach(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "s"), "XDG_RUNTIME_DIR": str(tmp_path)}
    server = ServerProcess(tmp_path / "state")
    words = ["--at", server.url, "--cwd", str(tmp_path), "--detach"]
    script = 'echo ready; while [ ! -e go ]; do sleep 0.01; done; exec "$@"'
    argv = [sys.executable, "-c", FLOOD, str(SIZE)]
    try:
        for follow in (["logs", "-f"], ["attach"]):
            left = subprocess.run(
                [*HANDRAIL, "run", *words, "--", "sh", "-c", script, "sh", *argv],
                env=env,
                capture_output=True,
                text=True,
                check=True,
                timeout=50,
            ).stdout.strip()
            with subprocess.Popen(
                [*HANDRAIL, *follow, left],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            ) as running:
                assert running.stdout is not None
                assert running.stdout.readline() == b"ready\n"
                (tmp_path / "go").touch()
                assert until_still(tmp_path / "done") < SIZE // 2
                data = running.stdout.read()
                assert running.wait(30) == 0
            assert hashlib.sha256(data).hexdigest() == expected(SIZE)
            (tmp_path / "go").unlink()
            (tmp_path / "done").unlink()
            subprocess.run([*HANDRAIL, "kill", left], env=env, capture_output=True, check=False)
    finally:
        server.stop()
        server.close()
