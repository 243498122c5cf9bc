"""A machine on which no call can be announced: nothing is opened by that, and the rest works."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.keeper import fork

#: A filter that announces nothing; but there is a listener then, and the kernel allows one.
ALLOW_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)

SCRIPT = """
import socket
try:
    socket.socket(socket.AF_UNIX)
    print("MADE")
except PermissionError:
    print("refused")
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
socket.create_connection(s.getsockname(), 5)
a, b = socket.socketpair()
a.send(b"PAIR")
print(b.recv(9).decode())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="handrail-ws-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made)


def run_listened_to(place: Path, *words: str) -> tuple[int, str]:
    """Run the command line with a listener around it."""
    argv = [os.fsencode(word) for word in (sys.executable, "-m", "handrail", *words)]
    env = {**os.environb, b"XDG_STATE_HOME": os.fsencode(place / "state")}
    with tempfile.TemporaryFile() as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), number) for number in (1, 2)]
        before = fork.Before(code=ALLOW_ALL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer interpreters warn of a fork beside threads
            pid, listener = fork.start(argv[0], argv, env, actions, (), before)
        status = os.waitpid(pid, 0)[1]
        os.close(listener)
        return os.waitstatus_to_exitcode(status), os.pread(output.fileno(), 65536, 0).decode()


def test_without_announcements_no_unix_socket_can_be_made(place: Path) -> None:
    root = str(place / "w")
    os.mkdir(root)
    words = ("sandbox", "--root", root, "--cwd", root, "--", "/usr/bin/python3", "-c", SCRIPT)
    assert run_listened_to(place, *words) == (0, "refused\nPAIR\n")


def test_the_doctor_says_so(place: Path) -> None:
    code, said = run_listened_to(place, "doctor")
    assert code == 0
    line = next(line for line in said.splitlines() if "unix sockets" in line)
    assert line.startswith("no")
    assert "cannot be announced here" in line
