"""Both ends of a stream within a limit: in memory while it is little, then in an unlinked file.

The file has no name and is gone with this object.  The bytes that border on what was dropped are
kept a little longer than the limit, unseen, so that a secret which the cut goes through is masked
as a whole.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator

from handrail.executor.output.spill import unlinked_file
from handrail.filesystem.content import write_at
from handrail.secret_masks import Secrets

#: What is kept in memory; beyond it all of it is in the file.
MEMORY_BYTES = 1024 * 1024
#: What is read from the file at a time.
_STEP = 1024 * 1024
#: What is looked at for the reason of a failure.
END_BYTES = 16 * 1024


class KeptOutput:
    """The first and the last half of ``limit`` bytes of output; None: all of it."""

    __slots__ = (
        *("_fd", "_head", "_head_cap", "_margin", "_spills", "_tail", "_tail_cap", "_tailed"),
        *("begins_cut", "missed"),
    )

    def __init__(self, limit: int | None, secrets: Secrets | None = None) -> None:
        """``secrets``: those that ``shown`` is to mask."""
        #: Bytes that were lost on their way here.
        self.missed = 0
        #: Whether bytes are missing before the first one.
        self.begins_cut = False
        self._margin = 0 if limit is None or secrets is None else max(secrets.longest - 1, 0)
        self._tail_cap = 0 if limit is None else limit // 2
        self._head_cap = sys.maxsize // 4 if limit is None else limit - self._tail_cap
        self._head = _Region(self._head_cap + self._margin)
        self._tail = _Region(self._tail_cap + self._margin)
        #: Bytes behind the head, in all.
        self._tailed = 0
        self._fd: int | None = None
        self._spills = True

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    @property
    def total(self) -> int:
        """All bytes that were added."""
        return min(self._head.end, self._head_cap) + self._tailed

    @property
    def omitted(self) -> int:
        """How many bytes are not kept, those included that never came here."""
        return self.missed + self._cut

    @property
    def _cut(self) -> int:
        return max(0, self._tailed - self._tail_cap)

    @property
    def in_file(self) -> bool:
        """Whether it is too much for memory."""
        return self._head.in_file

    def add(self, data: bytes) -> None:
        """Add the next piece."""
        room = self._head_cap - self._head.end
        if self._head.end < self._head.size:
            self._add(self._head, data[: self._head.size - self._head.end])
        if room < len(data):
            rest = data[max(room, 0) :]
            self._tailed += len(rest)
            self._add(self._tail, rest)
        if self._spills and self._head.held + self._tail.held > MEMORY_BYTES:
            self._spill()

    def _add(self, region: _Region, data: bytes) -> None:
        try:
            region.add(data)
        except OSError:  # the disk is full: memory is all there is
            done = region.end
            self._head.load()
            self._tail.load()
            region.add(data[done - region.begun :])

    def _spill(self) -> None:
        self._spills = False
        try:
            self._fd = unlinked_file()
            self._head.store(self._fd, 0)
            self._tail.store(self._fd, self._head.size)
        except OSError:
            return  # the disk is full, or there is none
        self._head.leave(self._fd)
        self._tail.leave(self._fd)

    def take(self) -> bytes:
        """All that is kept, the ends joined."""
        if not self._head.end and not self._tailed:
            return b""
        if not self.in_file:
            tail = min(self._tailed, self._tail_cap)
            return self._head.read(0, self._head_cap) + self._tail.last(tail)
        # It grows in place and is handed out as it is: joining would take twice the memory.
        whole = io.BytesIO()
        for piece in self._pieces():
            whole.write(piece)
        return whole.getvalue()

    def text(self, secrets: Secrets) -> str:
        """Version of `shown` as text: UTF-8, with U+FFFD for what is none."""
        if not self._head.end and not self._tailed:
            return ""  # as of most commands on one stream at least
        if secrets or not self.in_file:
            return self.shown(secrets).decode("utf-8", "replace")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        for piece in self._pieces():
            text += decoder.decode(piece)  # in place: no other object refers to it
        text += decoder.decode(b"", final=True)
        return text

    def _pieces(self) -> Iterator[bytes]:
        """All that is kept, at most a MiB at a time."""
        yield from self._head.pieces(0, min(self._head.end, self._head_cap))
        tail = min(self._tailed, self._tail_cap)
        if tail:
            start = (self._tail.end - tail) % self._tail.size
            here = min(tail, self._tail.size - start)
            yield from self._tail.pieces(start, here)
            yield from self._tail.pieces(0, tail - here)

    def end(self, secrets: Secrets, count: int = END_BYTES) -> bytes:
        """The newest bytes of what is kept, with every secret masked."""
        wanted = count + max(secrets.longest - 1, 0)
        last = self._tail.last(min(wanted, self._tailed))
        if not self._cut and len(last) < wanted:
            headed = min(self._head.end, self._head_cap)
            missing = min(wanted - len(last), headed)
            last = self._head.read(headed - missing, missing) + last
            return secrets.masked_part(last, 0, len(last), cut=self.begins_cut)[-count:]
        unseen = max(0, len(last) - self._tail_cap)
        return secrets.masked_part(last, unseen, len(last))[-count:]

    def shown(self, secrets: Secrets) -> bytes:
        """All that is kept, with every secret masked, also one that the cut has divided."""
        if not self._cut or not secrets:
            data = self.take()
            return secrets.masked_part(data, 0, len(data), cut=self.begins_cut)
        head = self._head.read(0, self._head.size)
        tail = self._tail.last(self._tail.size)
        before = len(tail) - min(self._tailed, self._tail_cap)
        shown = secrets.masked_part(head, 0, self._head_cap, cut=self.begins_cut)
        return shown + secrets.masked_part(tail, before, len(tail))


class _Region:
    """The last ``size`` bytes of what is added: a ring in memory, or in a part of a file."""

    __slots__ = ("_base", "_fd", "_memory", "begun", "end", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        #: Bytes that were added, and those before the last call of ``add``.
        self.end = self.begun = 0
        self._memory = bytearray()
        self._fd = -1
        self._base = 0

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._memory)

    @property
    def in_file(self) -> bool:
        return self._fd >= 0

    def add(self, data: bytes) -> None:
        """Add a piece; raises OSError, and ``end`` says then how much was added."""
        self.begun = self.end
        if len(data) > self.size:
            self.end += len(data) - self.size
            data = data[len(data) - self.size :]
        while data:
            at = self.end % self.size
            piece = data[: self.size - at]
            self._write(at, piece)
            self.end += len(piece)
            data = data[len(piece) :]

    def _write(self, at: int, data: bytes) -> None:
        if self._fd < 0:
            missing = at - len(self._memory)
            if missing > 0:  # what was skipped before is never read
                self._memory += bytes(missing)
            self._memory[at : at + len(data)] = data
            return
        write_at(self._fd, data, self._base + at)

    def store(self, fd: int, base: int) -> None:
        """Write it into a file; raises OSError."""
        memory = bytes(self._memory)
        self._fd, self._base = fd, base
        try:
            self._write(0, memory)
        finally:
            self._fd = -1

    def leave(self, fd: int) -> None:
        """Go on in the file."""
        self._fd = fd
        self._memory = bytearray()

    def load(self) -> None:
        """Go on in memory."""
        if self._fd >= 0:
            self._memory = bytearray(self.read(0, self.size))
            self._fd = -1

    def pieces(self, at: int, count: int) -> Iterator[bytes]:
        """The bytes of `read`, at most a MiB at a time."""
        while count > 0 and (piece := self.read(at, min(count, _STEP))):
            yield piece
            at, count = at + len(piece), count - len(piece)

    def last(self, count: int) -> bytes:
        """The newest bytes."""
        count = min(count, self.end, self.size)
        if not count:
            return b""
        start = (self.end - count) % self.size
        first = self.read(start, count)
        return first if len(first) == count else first + self.read(0, count - len(first))

    def read(self, at: int, count: int) -> bytes:
        """Bytes from a position of the ring, to its end at most."""
        count = min(count, min(self.end, self.size) - at)
        if self._fd < 0:
            return bytes(self._memory[at : at + count])
        parts = []
        while count > 0 and (part := os.pread(self._fd, count, self._base + at)):
            parts.append(part)
            at, count = at + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
