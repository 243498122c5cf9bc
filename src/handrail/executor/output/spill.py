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

#: More than a piece of output takes in the file beside its bytes.
_PIECE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive pieces of output in the file: numbers ``first`` to before ``end``."""

    first: int
    end: int
    #: Bytes of output, those that never arrived included.
    output: int
    position: int
    size: int


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
        pieces = [(e.kind is OutputKind.STDERR, e.data, e.seq, e.omitted) for e in events]
        data = marshal.dumps(pieces)
        if self._fd is None:
            self._fd = unlinked_file()
        at = self._end % self._limit
        write_at(self._fd, memoryview(data)[: self._limit - at], at)
        write_at(self._fd, memoryview(data)[self._limit - at :], 0)
        output = sum(len(event.data) + event.omitted for event in events)
        self.batches.append(Batch(first, first + len(events), output, self._end, len(data)))
        self._end += len(data)

    def get(self, number: int) -> tuple[int, list[OutputEvent]]:
        """The batch with the piece of that number, and the number of its first; raises OSError."""
        batch = self.batches[bisect_right(self.batches, number, key=lambda b: b.first) - 1]
        fd = -1 if self._fd is None else self._fd  # a batch has been written to it
        at = batch.position % self._limit
        here = min(batch.size, self._limit - at)
        data = os.pread(fd, here, at) + os.pread(fd, batch.size - here, 0)
        kinds = (OutputKind.STDOUT, OutputKind.STDERR)
        return batch.first, [
            OutputEvent(kinds[stderr], piece, seq, omitted)
            for stderr, piece, seq, omitted in marshal.loads(data)  # noqa: S302 (our own file)
        ]


def write_at(fd: int, data: memoryview, at: int) -> None:
    """Write all of it at a position of a file; raises OSError."""
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def unlinked_file() -> int:
    """A temporary file without a name, which is gone with its descriptor; raises OSError."""
    import tempfile

    fd, path = tempfile.mkstemp(prefix="handrail-output-")
    os.unlink(path)
    return fd
