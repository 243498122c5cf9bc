"""Make sure that the previous server is gone before another one gets the lease.

Two servers that read one pipe would each get a part of its output.  A server that asks for a held
lease waits here: a holder that is stopped is killed at once, one that does not answer after a
while too; one that answers keeps the lease, and the other server is refused.  A holder that gave
the lease back (BYE) may live on; one whose link broke without it must be gone before another server
gets a descriptor.  Signals go through a pidfd that was opened while the link was alive.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

from handrail.keeper import messages
from handrail.keeper.proc_children import stat_fields

#: How long a holder may take to say that it is alive.
ANSWER_SECONDS = 3.0
#: How long one whose link is gone may take to end by itself.
END_SECONDS = 1.0
#: How long a killed process may take; one in uninterruptible sleep outlasts it.
_DEATH_SECONDS = 5.0


class Holder:
    """The process behind a link, by a pidfd, which never refers to another process."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd

    @classmethod
    def behind(cls, sock: socket.socket) -> Holder:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = int.from_bytes(credentials[:4], sys.byteorder)
        try:
            return cls(pid, os.pidfd_open(pid))
        except OSError:
            return cls(pid, -1)  # gone already, or no descriptor free

    @property
    def ended(self) -> bool:
        return self.pidfd < 0 or _readable(self.pidfd, 0.0)

    @property
    def gone(self) -> bool:
        """Whether the process has certainly ended; ``ended`` says so too where nothing is known."""
        if self.pidfd >= 0:
            return self.ended
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it runs as another user
        return False

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger holds it: it would continue to read afterwards."""
        try:
            return stat_fields(self.pid)[0] in (b"T", b"t") and not self.ended
        except OSError:
            return False

    def fence(self, patience: float) -> bool:
        """Wait a little, then kill it; returns whether it is gone."""
        if self.pidfd < 0 or self.pid == os.getpid():
            return True
        if not _readable(self.pidfd, patience):
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except OSError:
                return self.ended
            return _readable(self.pidfd, _DEATH_SECONDS)
        return True

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Claim:
    """A server that wants the lease and waits for the holder to answer."""

    __slots__ = ("deadline", "fd", "hello", "serial")

    def __init__(self, fd: int, serial: int, hello: messages.Hello) -> None:
        self.fd = fd
        self.serial = serial
        self.hello = hello
        self.deadline = time.monotonic() + ANSWER_SECONDS


def alive(pidfd: int) -> bool:
    """Whether that process has not ended yet."""
    return not _readable(pidfd, 0.0)


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
