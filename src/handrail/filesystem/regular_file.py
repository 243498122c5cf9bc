"""Regular files: opening them safely, reading them whole or in pieces.

«Regular only» is decided on the open fd, and the opening itself cannot hang: O_NONBLOCK lets a pipe
without a writer open at once, fstat then refuses it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Self

from handrail.errors import UsageError
from handrail.filesystem import own_processes
from handrail.filesystem.errors import (
    NativePath,
    native,
    not_a_file,
    os_errors,
    refusal,
)
from handrail.filesystem.no_follow import open_no_follow

#: The largest file that is read in one call (exec-server 0.166.0).
READ_LIMIT = 512 * 1024 * 1024
#: Bytes per piece: a multiple of 3, so that each piece but the last is base64 without padding and
#: the texts of the pieces can be concatenated.  768 KiB become 1 MiB of text.
BLOCK = 768 * 1024

#: Opens without side effects: no blocking, no new controlling terminal.
CAREFUL = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_regular(
    path: NativePath, *, follow: bool, dir_fd: int | None = None
) -> tuple[int, os.stat_result]:
    """Open ``path`` for reading, regular files only; returns the fd and its fstat."""
    raw = native(path)
    with os_errors(raw, follow=follow):
        if follow:
            fd = own_processes.open_unchecked(raw, os.O_RDONLY | CAREFUL, dir_fd=dir_fd)
        else:
            fd = open_no_follow(raw, os.O_RDONLY | CAREFUL, dir_fd=dir_fd)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise not_a_file(raw, follow=follow)
            own_processes.refuse(fd, status)
        except BaseException:
            os.close(fd)
            raise
    return fd, status


def read_file(path: NativePath, *, follow: bool = True, limit: int = READ_LIMIT) -> bytes:
    """All bytes of a regular file of at most ``limit`` bytes."""
    raw = native(path)
    fd, status = open_regular(raw, follow=follow)
    try:
        with os_errors(raw, follow=follow):
            return _read_all(fd, raw, status.st_size, limit)
    finally:
        os.close(fd)


class ReadPlan:
    """A regular file, opened, to be sent in pieces without ever being in memory as a whole.

    ``size`` is the length at the time of opening and the most that will be delivered: what is
    appended later is not seen.  When the file shrinks meanwhile the pieces end early and
    ``delivered`` stays below ``size``; nothing is padded and nothing raises, since the sender has
    already begun and a reader of a shrinking file can expect no more.  Each piece but the last has
    exactly the requested length.  Files of /proc and /sys claim to be empty: they are read at once.
    """

    __slots__ = ("_fd", "_head", "_path", "delivered", "size")

    def __init__(self, path: NativePath, *, follow: bool = True, limit: int = READ_LIMIT) -> None:
        self._path = native(path)
        self._fd, status = open_regular(self._path, follow=follow)
        self._head = b""
        self.size = status.st_size
        self.delivered = 0
        try:
            if self.size > limit:
                raise _too_large(self._path, limit)
            if self.size == 0:
                with os_errors(self._path):
                    self._head = _read_all(self._fd, self._path, 0, limit)
                self.size = len(self._head)
        except BaseException:
            self.close()
            raise

    def next_block(self, block: int = BLOCK) -> bytes:
        """The next piece, empty at the end.  One call at a time."""
        if block <= 0 or block % 3:
            raise UsageError(f"block must be a positive multiple of 3, not {block}")
        wanted = min(block, self.size - self.delivered)
        if wanted <= 0 or self._fd < 0:
            return b""
        with os_errors(self._path):
            piece = self._head[self.delivered : self.delivered + wanted] or read_range(
                self._fd, self.delivered, wanted
            )
        self.delivered += len(piece)
        if len(piece) < wanted:
            self.close()  # it shrank; should it grow again, no hole may be skipped
        return piece

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.next_block():
            yield piece

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_range(fd: int, offset: int, length: int) -> bytes:
    """``length`` bytes from ``offset``; fewer only at the end of the file."""
    piece = os.pread(fd, length, offset)
    if len(piece) == length or not piece:
        return piece
    # A short read is not the end: network file systems and /proc may stop anywhere.
    parts = [piece]
    got = len(piece)
    while got < length and (piece := os.pread(fd, length - got, offset + got)):
        parts.append(piece)
        got += len(piece)
    return b"".join(parts)


def _read_all(fd: int, raw: bytes, expected: int, limit: int) -> bytes:
    """Read to the end, which need not be where fstat said: files grow, and /proc says 0."""
    if expected > limit:
        raise _too_large(raw, limit)
    # Never a small first read where 0 is claimed: settings below /proc/sys give one answer.
    data = os.read(fd, expected + 1 if expected else BLOCK)
    parts = [data]
    total = len(data)
    while data := os.read(fd, BLOCK):
        parts.append(data)
        total += len(data)
        if total > limit:
            raise _too_large(raw, limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(raw: bytes, limit: int) -> Exception:
    # The wire treats this as invalid input.
    return refusal(f"file is too large to read: limit is {limit} bytes", raw)
