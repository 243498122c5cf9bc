"""Write log lines to an fd without ever waiting for its reader.

A server whose stderr is a pipe that is not read must go on serving.  So a line that does not fit is
dropped and counted, and the next line that fits is preceded by the count.

How the fd is written without blocking depends on its type.  A pipe or a terminal is opened a second
time with O_NONBLOCK: setting the flag on the given fd would change it for every process that shares
it, a user's shell among them.  A socket takes MSG_DONTWAIT.  A regular file and ``/dev/null`` never
make their writer wait for a reader and are used as they are.  If a pipe cannot be opened a second
time, a line is written only when ``poll`` reports space, in pieces that the kernel takes whole.
"""

from __future__ import annotations

import os
import select
import socket
import stat

#: What a pipe that ``poll`` calls writable takes without blocking the writer (PIPE_BUF).
_SURE = 4096

#: The number of /dev/null on Linux.
_NULL_DEVICE = os.makedev(1, 3)


class LogStream:
    """The writing end of a log.  ``write`` takes whole lines and returns at once."""

    def __init__(self, fd: int) -> None:
        #: Lines that were dropped since the last written one.
        self.dropped = 0
        self._rest = b""
        self._socket: socket.socket | None = None
        self._polls = False
        self._fd = self._open(fd)
        self._own = self._fd != fd

    def _open(self, fd: int) -> int:
        try:
            status = os.fstat(fd)
        except OSError:
            return -1  # closed before the program began: there is no log
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFSOCK:
            self._socket = socket.socket(fileno=os.dup(fd))
        elif kind in (stat.S_IFIFO, stat.S_IFCHR) and status.st_rdev != _NULL_DEVICE:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                return os.open(f"/proc/self/fd/{fd}", flags)
            except OSError:
                self._polls = True
        return fd

    def write(self, line: str) -> None:
        """Write one line, or drop and count it."""
        if self._fd < 0:
            return
        notice = (
            f"({self.dropped} log lines before this one were dropped)\n" if self.dropped else ""
        )
        data = (notice + line + "\n").encode("utf-8", "backslashreplace")
        if self._rest:
            self._rest = self._put(self._rest)
        left = data if self._rest else self._put(data)
        if len(left) == len(data):
            self.dropped += 1
            return
        self._rest = left  # sent first next time: the reader has half of this line
        self.dropped = 0

    def _put(self, data: bytes) -> bytes:
        """Write what there is room for and return the rest."""
        view = memoryview(data)
        try:
            while view and self._has_room():
                view = view[self._put_some(view) :]
        except OSError:
            pass  # no room now, no reader any more, or a full disk
        return bytes(view)

    def _has_room(self) -> bool:
        if not self._polls:
            return True
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return bool(poller.poll(0))

    def _put_some(self, view: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(view, socket.MSG_DONTWAIT)
        return os.write(self._fd, view[:_SURE] if self._polls else view)

    def close(self) -> None:
        """Close what was opened here; the given fd stays open."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._own:
            os.close(fd)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
