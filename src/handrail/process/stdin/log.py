"""The accepted input of one process, in a memfd that outlives the server.

How it works.  Bytes are appended to a memfd, then one record says how far they go and under which
write id they came; only then is the write accepted.  ``sendfile`` moves them on into the pipe or
terminal from the memfd's own file position: the kernel moves bytes and position in one system
call, and the position is shared with the keeper.  So a server that comes after a killed one knows
exactly what the child has got, what it still has to get, and which write is a repetition.

A pipe takes *references* to the pages, so nothing that was handed over is ever overwritten: the
log only grows, and whole pages far behind the position are given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import struct
from mmap import MADV_REMOVE, mmap

from handrail import fault_points, memory_file
from handrail.process import fd_reserve

_RECORDS_AT = 1 << 44  # far beyond all input: the memfd is sparse
_RECORD = struct.Struct("<12sIQQ")  # digest of the write id, checksum, number and flag, end
_CLOSING = 1 << 63
#: Records kept; the ids a process remembers.
REMEMBERED = 4096
NO_ID = bytes(12)
#: Input is given back in such pieces, and only when it is this far behind: a pipe holds at most
#: 1 MiB, and it may still hold those very pages.
_PIECE = 2 * 1024 * 1024
_PUNCH_HOLE = 0x02 | 0x01  # and keep the size


#: Errors of a call that is there and may be made: no room, or the reader is gone.
_NOT_REFUSED = {errno.EAGAIN, errno.EINTR, errno.EIO, errno.EPIPE, errno.ENOMEM}


class StdinLog:
    """The input for a child, and how much of it has arrived."""

    __slots__ = ("_plain", "_punched", "_records", "closing", "end", "fd", "sent")

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = fd_reserve.outside(memory_file.create("handrail-stdin"))
        self.fd = fd
        self.end = 0  # of what was accepted
        self.sent = 0  # of what the pipe or terminal has taken
        self.closing = False  # the end of file follows
        self._records = 0
        self._punched = 0
        self._plain = False

    @classmethod
    def attach(cls, fd: int) -> tuple[StdinLog, list[tuple[bytes, int]]]:
        """The log of a previous server, and the writes it had accepted, oldest first."""
        log = cls(fd)
        log.sent = os.lseek(fd, 0, os.SEEK_CUR)
        data = os.pread(fd, REMEMBERED * _RECORD.size, _RECORDS_AT)
        found = []
        for digest, check, number, end in _RECORD.iter_unpack(data[: len(data) // 32 * 32]):
            if number:
                found.append((number & ~_CLOSING, digest, check))
                log.closing = log.closing or bool(number & _CLOSING)
                log.end = max(log.end, end)
        found.sort()
        if found:
            log._records = found[-1][0]
        return log, [(digest, check) for _, digest, check in found if digest != NO_ID]

    @property
    def waiting(self) -> int:
        return self.end - self.sent

    def append(self, data: bytes, digest: bytes = NO_ID, check: int = 0) -> None:
        """Accept some bytes."""
        view, at = memoryview(data), self.end
        while view:
            written = os.pwrite(self.fd, view, at)
            view, at = view[written:], at + written
        if fault_points.armed:
            fault_points.point("stdin.appended")
        self._record(digest, check, at)
        self.end = at
        if fault_points.armed:
            fault_points.point("stdin.recorded")

    def finish(self) -> None:
        """Mark the end of the input."""
        if not self.closing:
            self.closing = True
            self._record(NO_ID, 0, self.end)

    def send(self, to: int) -> int:
        """Send as much as ``to`` takes now.  Raises BlockingIOError when that is nothing."""
        want = self.end - self.sent
        if fault_points.armed:
            want = fault_points.at_most("stdin.send", want)
        if self._plain:
            moved = self._copy(to, want)
        else:
            try:
                moved = os.sendfile(to, self.fd, None, want)
            except OSError as error:
                if error.errno in _NOT_REFUSED:
                    raise
                self._plain = True
                moved = self._copy(to, want)
        self.sent += moved
        if fault_points.armed:
            fault_points.point("stdin.sent")
        if self.sent - self._punched >= 2 * _PIECE:
            self._give_back()
        return moved

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _record(self, digest: bytes, check: int, end: int) -> None:
        self._records += 1
        number = self._records | (_CLOSING if self.closing else 0)
        record = _RECORD.pack(digest, check, number, end)
        os.pwrite(self.fd, record, _RECORDS_AT + self._records % REMEMBERED * _RECORD.size)

    def _copy(self, to: int, want: int) -> int:
        """Copy where the kernel refuses sendfile; a killed server may then send bytes twice."""
        moved = os.write(to, os.pread(self.fd, min(want, 65_536), self.sent))
        os.lseek(self.fd, self.sent + moved, os.SEEK_SET)
        return moved

    def _give_back(self) -> None:
        upto = self.sent // _PIECE * _PIECE - _PIECE
        if upto > self._punched:
            libc = ctypes.CDLL(None, use_errno=True)
            offset = ctypes.c_int64
            size = upto - self._punched
            refused = libc.fallocate(self.fd, _PUNCH_HOLE, offset(self._punched), offset(size))
            if refused:  # the same by another call
                with (
                    contextlib.suppress(OSError),
                    mmap(self.fd, size, offset=self._punched) as gone,
                ):
                    gone.madvise(MADV_REMOVE)
            self._punched = upto


@functools.cache
def can_send() -> bool:
    """Whether the kernel moves input and position in one step: a killed server repeats none."""
    source = memory_file.create("handrail-probe")
    drain, pipe = os.pipe2(os.O_CLOEXEC)
    try:
        os.pwrite(source, b"x", 0)
        return os.sendfile(pipe, source, None, 1) == 1
    except OSError:
        return False
    finally:
        for fd in (source, drain, pipe):
            os.close(fd)
