"""The user's own server, found by its socket: used only if it proves that it is."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.executor.sshd import end_all
from tests.support.eventually import LIMIT

HANDRAIL = [sys.executable, "-m", "handrail"]


def handrail(room: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "HOME": str(room), "XDG_STATE_HOME": f"{room}/state"}
    env.pop("XDG_RUNTIME_DIR", None)
    return subprocess.run(
        [*HANDRAIL, *words], capture_output=True, stdin=subprocess.DEVNULL, env=env, check=False
    )


def test_one_that_is_started_is_found_again(room: Path) -> None:
    for _ in range(2):
        done = handrail(room, "run", "--detach", "--", "sleep", "60")
        assert done.returncode == 0, done.stderr
    listed = handrail(room, "ps")
    assert listed.stdout.count(b"sleep 60") == 2
    runtime = room / "state" / "handrail" / "runtime"
    assert (runtime / "server.sock").is_socket()
    for place in (room / "state", runtime.parent, runtime):
        assert place.stat().st_mode & 0o777 == 0o700


def test_what_listens_in_its_place_is_told_nothing(room: Path) -> None:
    runtime = room / "state" / "handrail" / "runtime"
    assert handrail(room, "run", "--detach", "--", "true").returncode == 0  # makes the secret
    asyncio.run(end_all(str(room)))
    (runtime / "server.sock").unlink(missing_ok=True)
    heard = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(runtime / "server.sock"))
        listener.listen()
        listener.settimeout(LIMIT)

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                heard.append(sock.recv(65_536))
                sock.sendall(b'handrail-proof 00 11\n{"id":1,"result":{}}\n')
                heard.append(sock.recv(65_536))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        done = handrail(room, "run", "--env", "S=hunter2", "--detach", "--", "true")
        thread.join(LIMIT)
    assert done.returncode != 0
    assert b"does not prove" in done.stderr
    assert heard[0].startswith(b"handrail-proof ")
    assert heard[0].count(b"\n") == 1
    assert heard[1] == b""


@pytest.mark.parametrize("name", ["server.sock.log", "start.lock", "listen.lock", "secret"])
def test_no_link_in_its_place_is_followed(room: Path, name: str) -> None:
    runtime = room / "state" / "handrail" / "runtime"
    runtime.mkdir(parents=True)
    (runtime / name).symlink_to(room / "victim")
    done = handrail(room, "run", "--detach", "--", "true")
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    assert not (room / "victim").exists()
