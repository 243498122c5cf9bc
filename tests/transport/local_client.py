"""A client on loopback in a process of its own, of any user."""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Self

import pytest

STRANGER = 1000

#: The socket is made after the process has become the user; the interpreter is root's to read.
_PROGRAM = """
import os, socket, struct, sys
uid, target, port, source, device, text = sys.argv[1:7]
if int(uid) != os.getuid():
    os.setgroups([]); os.setresgid(*[int(uid)] * 3); os.setresuid(*[int(uid)] * 3)
s = socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET)
s.settimeout(30)
if source:
    s.bind((source, 0))
if device:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
s.connect((target, int(port)))
s.sendall(text.encode())
print("connected", flush=True)
for line in sys.stdin:
    what = line.strip()
    if what == "close":
        s.close()
    elif what == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); s.close()
    elif what == "half":
        s.shutdown(socket.SHUT_WR)
    elif what == "read":
        try:
            print(s.recv(4096)[:12], flush=True)
        except ConnectionResetError:
            print(b"", flush=True)
        continue
    print("done", flush=True)
"""


class LocalClient:
    """Connects when it is made; then does what it is told."""

    def __init__(
        self,
        target: str,
        port: int,
        *,
        uid: int | None = None,
        source: str = "",
        device: str = "",
        text: str = "hello",
    ) -> None:
        user = os.getuid() if uid is None else uid
        if user != os.getuid() and os.getuid() != 0:
            pytest.skip("only root can have a client of another user")
        words = [str(user), target, str(port), source, device, text]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "connected"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, what: str) -> str:
        """Have it ``close``, ``reset``, end its output (``half``) or ``read``; what it says."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
