"""Accepted input of one process, in a place that outlives the server.

How it works.  Bytes are appended to a memfd, then one record says how far they go and under which
write id they came; only then is the write accepted.  ``sendfile`` moves them on into the pipe or
terminal from the memfd's own file position: the kernel moves bytes and position in one system
call, and the position is shared with the keeper.  So a server that comes after a killed one knows
exactly what the child has got, what it still has to get, and which write is a repetition.

A pipe takes *references* to the pages, so nothing that was handed over is ever overwritten: the
log only grows, and whole pages far behind the position are given back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from handrail import faults
from handrail.process import reserve

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


class StdinLog:
    """What a child was sent, and how much of it has arrived."""

    __slots__ = ("_plain", "_punched", "_records", "closing", "end", "fd", "sent")

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = reserve.outside(os.memfd_create("handrail-stdin", os.MFD_CLOEXEC))
        self.fd = fd
        self.end = 0  # of what was accepted
        self.sent = 0  # of what the pipe or terminal has taken
        self.closing = False  # the end of file follows
        self._records = 0
        self._punched = 0
        self._plain = False

    @classmethod
    def attach(cls, fd: int) -> tuple[StdinLog, list[tuple[bytes, int]]]:
        """The log a server before us has left, and the writes it had accepted, oldest first."""
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
        if faults.armed:
            faults.point("stdin.appended")
        self._record(digest, check, at)
        self.end = at
        if faults.armed:
            faults.point("stdin.recorded")

    def finish(self) -> None:
        """Nothing comes after this."""
        if not self.closing:
            self.closing = True
            self._record(NO_ID, 0, self.end)

    def send(self, to: int) -> int:
        """Move on what ``to`` takes now.  Raises BlockingIOError when that is nothing."""
        want = self.end - self.sent
        if faults.armed:
            want = faults.at_most("stdin.send", want)
        if self._plain:
            moved = self._copy(to, want)
        else:
            try:
                moved = os.sendfile(to, self.fd, None, want)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._plain = True
                moved = self._copy(to, want)
        self.sent += moved
        if faults.armed:
            faults.point("stdin.sent")
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
        """Where the kernel does not send files there: without the promise for a killed server."""
        moved = os.write(to, os.pread(self.fd, min(want, 65_536), self.sent))
        os.lseek(self.fd, self.sent + moved, os.SEEK_SET)
        return moved

    def _give_back(self) -> None:
        upto = self.sent // _PIECE * _PIECE - _PIECE
        if upto > self._punched:
            libc = ctypes.CDLL(None, use_errno=True)
            offset = ctypes.c_int64
            libc.fallocate(
                self.fd, _PUNCH_HOLE, offset(self._punched), offset(upto - self._punched)
            )
            self._punched = upto
