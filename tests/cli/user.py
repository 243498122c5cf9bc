"""A user at a terminal, who types and looks."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from typing import Any, Self

HANDRAIL = [sys.executable, "-m", "handrail"]
_SECONDS = 40.0


class Terminal:
    """A terminal of 30 x 100 in which ``argv`` was started."""

    def __init__(self, *argv: str, env: dict[str, str] | None = None, cwd: Any = None) -> None:
        self.said = b""
        self._code: int | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                self._size(0, 30, 100)
                if cwd is not None:
                    os.chdir(cwd)
                os.execvpe(argv[0], argv, {**os.environ, **(env or {})})
            finally:
                os._exit(99)

    @staticmethod
    def _size(fd: int, rows: int, columns: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, wanted: bytes) -> None:
        """Wait until it was said since the last time; what came before is forgotten."""
        deadline = time.monotonic() + _SECONDS
        while wanted not in self.said:
            assert select.select([self.fd], [], [], deadline - time.monotonic())[0], self.said
            try:
                piece = os.read(self.fd, 65_536)
            except OSError:
                piece = b""
            assert piece, self.said
            self.said += piece
        self.said = self.said.partition(wanted)[2]

    def type(self, data: bytes) -> None:
        """As fast as the terminal takes it."""
        os.write(self.fd, data)

    def resize(self, rows: int, columns: int) -> None:
        """Pull at the window."""
        self._size(self.fd, rows, columns)

    def modes(self) -> list[Any]:
        """How the terminal is set."""
        return termios.tcgetattr(self.fd)

    def end(self) -> int:
        """The exit code; what is still said is read, or it might wait to say it."""
        while True:
            try:
                if not (piece := os.read(self.fd, 65_536)):
                    break
            except OSError:
                break
            self.said += piece
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
