"""The numbered events of one process, and which output is still there.  Pure.

How it works.  Every chunk of output, the exit and the close take the next number, from 1,
without gaps.  The log knows where a chunk lies in its stream (``start``, ``size``) and not
what is in it: the bytes are in the stream's spool.  Beyond the retention whole chunks are
dropped from the front; the log remembers how many bytes each number stands for, so that a
late reader is told exactly what it missed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

RETENTION_BYTES = 1024 * 1024
RETENTION_CHUNKS = 50_000
#: Byte counts of this many numbers are remembered for ``omitted``.
_HISTORY = 131_072
#: How many chunks a finished process may have whose log is packed: one has no use of it, and very
#: many would hold up the loop.
_PACKED = range(2, 1024)


class Chunk:
    """Some bytes of one stream, by position."""

    __slots__ = ("seq", "size", "start", "stream")

    def __init__(self, seq: int, stream: int, start: int, size: int) -> None:
        self.seq = seq
        self.stream = stream
        self.start = start
        self.size = size


class Event(NamedTuple):
    """A chunk as it was recorded, with the bytes of the process up to and including it."""

    seq: int
    stream: int
    start: int
    size: int
    total: int


@dataclass(frozen=True, slots=True)
class Page:
    """What a read returns: chunks, and the number to go on from."""

    chunks: list[Chunk]
    next_seq: int


class RetainedBytes:
    """How much output all logs of one owner retain; the logs keep it up to date."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class OutputLog:
    """Numbers for events; positions for retained chunks."""

    __slots__ = (
        "_chunks",
        "_ends",
        "_ends_from",
        "_head",
        "_limit_bytes",
        "_limit_chunks",
        "_owner",
        "_packed",
        "bytes_dropped",
        "bytes_total",
        "chunks_dropped",
        "closed_seq",
        "dropped_seq",
        "exit_seq",
        "next_seq",
        "retained",
    )

    def __init__(
        self, limit_bytes: int = RETENTION_BYTES, limit_chunks: int = RETENTION_CHUNKS
    ) -> None:
        self._limit_bytes = limit_bytes
        self._limit_chunks = limit_chunks
        self._owner: RetainedBytes | None = None
        self._chunks: list[Chunk] = []
        self._packed: array[int] | None = None  # instead of them, after the close
        self._head = 0
        self._ends: array[int] | None = None  # bytes up to and including a number
        self._ends_from = 1
        self.next_seq = 1
        self.retained = 0
        self.bytes_total = 0
        self.bytes_dropped = 0
        self.chunks_dropped = 0
        self.dropped_seq = 0  # the highest number whose bytes are gone
        self.exit_seq: int | None = None
        self.closed_seq: int | None = None

    def append(self, stream: int, start: int, size: int) -> Chunk:
        """Number one chunk; older ones leave when the retention is full."""
        chunk = Chunk(self._number(size), stream, start, size)
        self._chunks.append(chunk)
        self.retained += size
        if self._owner is not None:
            self._owner.count += size
        if self.retained > self._limit_bytes or len(self._chunks) - self._head > self._limit_chunks:
            self._evict()
        return chunk

    def count_in(self, owner: RetainedBytes | None) -> None:
        """Add what is retained to the count of an owner, now and from now on; None: to no one's."""
        if self._owner is not None:
            self._owner.count -= self.retained
        if owner is not None:
            owner.count += self.retained
        self._owner = owner

    def exited(self) -> int:
        """Number the exit."""
        self.exit_seq = self._number(0)
        return self.exit_seq

    def closed(self) -> int:
        """Number the close, which is the last event."""
        self.closed_seq = self._number(0)
        return self.closed_seq

    def restore(self, events: list[Event], exit_seq: int | None, closed_seq: int | None) -> None:
        """Continue after the log of a previous server; only for a log that is new."""
        self.exit_seq, self.closed_seq = exit_seq, closed_seq
        self.next_seq = max(events[-1].seq if events else 0, exit_seq or 0, closed_seq or 0) + 1
        self._ends_from = first = events[0].seq if events else 1
        self.bytes_total = total = events[0].total - events[0].size if events else 0
        self.bytes_dropped = total
        if total:
            self.dropped_seq = first - 1 if exit_seq != first - 1 else first - 2
            early = exit_seq is not None and exit_seq < first
            self.chunks_dropped = first - 1 - early
        ends = self._ends = array("Q")
        for event in events:
            while first + len(ends) < event.seq:  # an exit or a close: no bytes
                ends.append(self.bytes_total)
            self.bytes_total = event.total
            ends.append(event.total)
            self._chunks.append(Chunk(event.seq, event.stream, event.start, event.size))
            self.retained += event.size
        while first + len(ends) < self.next_seq:
            ends.append(self.bytes_total)
        self._evict()

    def read(self, after: int, max_bytes: int | None) -> Page:
        """Retained chunks numbered above ``after``; at least one if there is any."""
        chunks = self._chunks if self._packed is None else _unpacked(self._packed, after)
        at = bisect_right(chunks, after, lo=self._head, key=_seq)
        if max_bytes is None:
            return Page(chunks[at:], self.next_seq)
        taken: list[Chunk] = []
        total = 0
        for chunk in chunks[at:]:
            if taken and total + chunk.size > max_bytes:
                break
            taken.append(chunk)
            total += chunk.size
            if total >= max_bytes:
                break
        return Page(taken, taken[-1].seq + 1 if taken else self.next_seq)

    def settled(self) -> OutputLog:
        """A smaller form of the log after the close; logs without output share one object."""
        if self.bytes_total == 0 and self.closed_seq == _SILENT.closed_seq:
            return _SILENT
        chunks = self._chunks[self._head :]
        if len(chunks) in _PACKED:
            self._packed = _packed(chunks)
            self._chunks, self._head = _NO_CHUNKS, 0
            self._ends = self._ends and self._ends[:]  # without room for more
        return self

    def omitted(self, after: int) -> tuple[int, int]:
        """Bytes and chunks above ``after`` that the retention has dropped."""
        if after >= self.dropped_seq:
            return 0, 0
        if after == 0:
            return self.bytes_dropped, self.chunks_dropped
        chunks = self.dropped_seq - after
        if self.exit_seq is not None and after < self.exit_seq <= self.dropped_seq:
            chunks -= 1
        return self.bytes_dropped - self.bytes_through(after), chunks

    def _number(self, size: int) -> int:
        seq = self.next_seq
        self.next_seq = seq + 1
        self.bytes_total += size
        ends = self._ends
        if ends is None:
            ends = self._ends = array("Q")
        ends.append(self.bytes_total)
        if len(ends) > _HISTORY:
            half = _HISTORY // 2
            del ends[:half]
            self._ends_from += half
        return seq

    def since(self, seq: int) -> tuple[int, int]:
        """Bytes and events numbered above ``seq``."""
        return self.bytes_total - self.bytes_through(seq), self.next_seq - 1 - seq

    def bytes_through(self, seq: int) -> int:
        """How much output there was up to and including this number."""
        if self._ends is None or seq < self._ends_from:
            return 0
        return self._ends[seq - self._ends_from]

    def _evict(self) -> None:
        chunks, head = self._chunks, self._head
        before = self.retained
        while head < len(chunks) - 1 and (
            self.retained > self._limit_bytes or len(chunks) - head > self._limit_chunks
        ):
            gone = chunks[head]
            head += 1
            self.retained -= gone.size
            self.bytes_dropped += gone.size
            self.chunks_dropped += 1
            self.dropped_seq = gone.seq
        if self._owner is not None:
            self._owner.count += self.retained - before
        if head > 512 and head * 2 > len(chunks):
            del chunks[:head]
            head = 0
        self._head = head


_NO_CHUNKS: list[Chunk] = []
_SILENT = OutputLog()
_SILENT.exited()
_SILENT.closed()


def _seq(chunk: Chunk) -> int:
    return chunk.seq


def _packed(chunks: list[Chunk]) -> array[int]:
    """The numbers of chunks, in a third of the memory."""
    each = ((chunk.seq, chunk.stream, chunk.start, chunk.size) for chunk in chunks)
    return array("Q", [number for numbers in each for number in numbers])


def _unpacked(packed: array[int], after: int) -> list[Chunk]:
    """The chunks that were packed, but for most of those numbered up to ``after``."""
    if packed[-4] <= after:
        return []
    # Only the exit can have a number between those of chunks.
    numbers = iter(packed[4 * max(0, after - packed[0]) :])
    return [Chunk(*each) for each in zip(numbers, numbers, numbers, numbers, strict=True)]
