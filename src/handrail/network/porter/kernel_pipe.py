"""Move bytes from one socket to another within the kernel, without copying them.

One pipe serves all tunnels, so it must be empty between two moves: what a target does not take is
taken out again, and after any failure the pipe is thrown away with what is in it.
"""

from __future__ import annotations

import errno
import fcntl
import os

_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
#: Each page of a message takes a place in the pipe, however little is in it.
_PLACES_FOR_EACH = 4
_IMPOSSIBLE = frozenset((errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM))


class KernelPipe:
    """A pipe, made when it is first used."""

    def __init__(self, most: int) -> None:
        """``most``: bytes of one move."""
        self._most = most
        self._ends: tuple[int, int] | None = None
        #: This kernel moves no bytes between such sockets: the caller copies them.
        self.is_unusable = False

    def move(self, source: int, target: int) -> tuple[int, bytes]:
        """How many bytes have come, 0 at the end, and those of them that the target did not take.

        Raises BlockingIOError when none have come, OSError when one of both is broken.
        """
        try:
            reading, writing = self._ends or self._open()
        except OSError:
            self.is_unusable = True  # no descriptor is free: copying needs none
            raise BlockingIOError from None
        try:
            size = os.splice(source, writing, self._most, flags=_FLAGS)
        except OSError as error:
            self._judge(error)
            raise BlockingIOError from None
        try:
            return size, self._send(reading, target, size)
        except BlockingIOError:
            self.close()
            raise ConnectionAbortedError(errno.ECONNABORTED, "the pipe has lost bytes") from None
        except BaseException:
            self.close()  # what is in it belongs to this relay alone
            raise

    def _send(self, reading: int, target: int, left: int) -> bytes:
        """Move what is in the pipe on; what is left is taken out."""
        try:
            while left:
                left -= os.splice(reading, target, left, flags=_FLAGS)
        except BlockingIOError:
            pass
        except OSError as error:
            self._judge(error)
        taken = bytearray()
        while len(taken) < left:
            taken += os.read(reading, left - len(taken))
        return bytes(taken)

    def _judge(self, error: OSError) -> None:
        """Remember that moving is impossible here; raises other errors but that of waiting."""
        if error.errno in _IMPOSSIBLE:
            self.is_unusable = True
        elif error.errno != errno.EAGAIN:
            raise error

    def _open(self) -> tuple[int, int]:
        self._ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(self._ends[1], fcntl.F_SETPIPE_SZ, self._most * _PLACES_FOR_EACH)
        except OSError:
            pass  # the user has many: less is moved at a time
        return self._ends

    def close(self) -> None:
        """Throw the pipe away; another one is made for the next move."""
        ends, self._ends = self._ends, None
        for fd in ends or ():
            os.close(fd)
