"""Directories for temporary files, when those who had them made are killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from handrail import Workspace
from tests.support.servers import ServerProcess

CLIENT = """
import sys
from handrail import Workspace
where, root = sys.argv[1:]
with Workspace(root, at=where or None) as ws:
    ws.run("mkdir -m 0 $TMPDIR/closed")
    print(ws._twin._location.temporary, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TMPDIR."""
    place = tmp_path / "t"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@contextmanager
def client(at: str, root: Path) -> Iterator[Path]:
    """A program with a workspace, killed in the end; where its temporary files are."""
    argv = [sys.executable, "-c", CLIENT, at, str(root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        yield Path(os.fsdecode(running.stdout.readline().rstrip(b"\n")))
        running.kill()


def until_empty(place: Path) -> None:
    while list(place.iterdir()):  # the limit of the test is the limit of this
        select.select([], [], [], 0.01)


@contextmanager
def server(state: Path, ttl: float = 0.2) -> Iterator[ServerProcess]:
    """Stopped in the end, unless it was killed."""
    server = ServerProcess(state, "--detach-ttl", str(ttl))
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        server.close()


def test_of_a_remote_client_that_is_killed(place: Path, tmp_path: Path) -> None:
    with server(tmp_path / "state") as there:
        with client(there.url, tmp_path) as made:
            assert made.parent == place
            assert made.stat().st_mode & 0o777 == 0o700
        until_empty(place)


def test_of_a_session_whose_server_is_killed_too(place: Path, tmp_path: Path) -> None:
    with server(tmp_path / "state") as there, client(there.url, tmp_path):
        there.stop(signal.SIGKILL)
    assert list(place.iterdir())
    with server(tmp_path / "state"):
        until_empty(place)


def test_of_a_server_that_is_killed_with_its_keeper(place: Path, tmp_path: Path) -> None:
    with server(tmp_path / "state", ttl=600) as there, client(there.url, tmp_path):
        keeper = there.keeper()
        there.stop(signal.SIGKILL)
        os.kill(keeper, signal.SIGKILL)
    with server(tmp_path / "state"):
        assert not list(place.iterdir())


def test_of_a_server_that_stops(place: Path, tmp_path: Path) -> None:
    with server(tmp_path / "state") as there, client(there.url, tmp_path):
        there.stop()
        assert not list(place.iterdir())


@pytest.mark.parametrize("at", ["", f"stdio:{sys.executable} -m handrail serve --listen stdio"])
def test_of_a_program_that_is_killed(at: str, place: Path, tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    with client(at, root) as made:
        assert made.parent == place
        with Workspace(root) as ws:
            assert ws.run("true").exit_code == 0  # it sweeps, and leaves the living alone
        assert list(place.iterdir()) == [made]
    while made.exists():
        with Workspace(root) as ws:
            ws.run("true")
    until_empty(place)
