"""Output that is too old for memory, in an unlinked temporary file of bounded size.

The file is a ring of batches.  A batch is written, read and dropped as a whole, so that many small
pieces cost no more than a few large ones, and their positions take no memory.
"""

from __future__ import annotations

import marshal
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from handrail.executor.base import OutputEvent, OutputKind
from handrail.filesystem.content import write_at

#: More than a piece of output takes in the file beside its bytes.
_PIECE_BYTES = 64
#: How many buffers one system call takes.
_PARTS_MOST = 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive pieces of output in the file: numbers ``first`` to before ``end``."""

    first: int
    end: int
    #: Bytes of output, those that never arrived included.
    output: int
    position: int
    size: int
    #: Of which so many bytes are the list of its pieces, in front of their output.
    head: int


class OutputSpill:
    """The batches of one process, oldest first."""

    __slots__ = ("_end", "_fd", "_limit", "batches")

    def __init__(self, limit: int) -> None:
        """``limit``: how many bytes the file may have."""
        self._limit = limit
        self._fd: int | None = None
        self._end = 0
        self.batches: list[Batch] = []

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def grow(self, limit: int) -> None:
        """Let the file have so many bytes, if it has not come round to its beginning yet."""
        if self._end <= self._limit < limit:
            self._limit = limit

    def has_room(self, events: Sequence[OutputEvent]) -> bool:
        """Whether these fit into the file without dropping a batch."""
        used = self._end - self.batches[0].position if self.batches else 0
        return used + sum(len(event.data) + _PIECE_BYTES for event in events) <= self._limit

    def put(self, first: int, events: Sequence[OutputEvent]) -> None:
        """Write a batch, for which there must be room; raises OSError, and keeps nothing then."""
        head = marshal.dumps(
            [(e.kind is OutputKind.STDERR, len(e.data), e.seq, e.omitted) for e in events]
        )
        if self._fd is None:
            self._fd = unlinked_file()
        parts = [head, *[event.data for event in events]]
        size = sum(map(len, parts))
        at = self._end % self._limit
        written = 0
        if at + size <= self._limit and len(parts) <= _PARTS_MOST:
            # Joining a few large ones would take longer than writing them.
            written = os.pwritev(self._fd, parts, at)
        if written < size:
            data = memoryview(b"".join(parts))
            here = self._limit - at
            write_at(self._fd, data[written:here], at + written)
            write_at(self._fd, data[here:], 0)
        output = size - len(head) + sum(event.omitted for event in events)
        end = first + len(events)
        self.batches.append(Batch(first, end, output, self._end, size, len(head)))
        self._end += size

    def get(self, number: int) -> tuple[int, list[OutputEvent]]:
        """The batch with the piece of that number, and the number of its first; raises OSError."""
        batch = self.batches[bisect_right(self.batches, number, key=lambda b: b.first) - 1]
        fd = -1 if self._fd is None else self._fd  # a batch has been written to it
        at = batch.position % self._limit
        here = min(batch.size, self._limit - at)
        data = os.pread(fd, here, at) + os.pread(fd, batch.size - here, 0)
        kinds = (OutputKind.STDOUT, OutputKind.STDERR)
        events = []
        at = batch.head
        for stderr, size, seq, omitted in marshal.loads(data[:at]):  # noqa: S302 (our own file)
            events.append(OutputEvent(kinds[stderr], data[at : at + size], seq, omitted))
            at += size
        return batch.first, events


def unlinked_file() -> int:
    """A temporary file without a name, which is gone with its descriptor; raises OSError."""
    import tempfile

    fd, path = tempfile.mkstemp(prefix="handrail-output-")
    os.unlink(path)
    return fd
