"""The retained output of a process, for any number of readers.

Output is kept up to a limit, oldest dropped first: the newest in memory, what is older in a
temporary file.  Each reader has its own position: one that lags gets what is left and the number
of bytes it missed, and never blocks another.  Positions count bytes of all output in the order of
the sequence numbers.

For a *paced* reader nothing is dropped that it has not read, and while most of the limit waits
for it, ``gate`` closes the input (back-pressure).  ``release`` ends that: the exit event comes
after the output, so ending a process must not wait for a reader.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from handrail.errors import HandrailError
from handrail.executor.base import OutputEvent, OutputKind
from handrail.futures import set_done
from handrail.process.output.output_log import RETENTION_CHUNKS

if TYPE_CHECKING:
    from handrail.executor.output.spill import OutputSpill

#: How much output of a process is kept for late readers, unless its caller says otherwise.
KEEP_OUTPUT = 256 * 1024 * 1024
#: Beyond so much in memory the older half is written to the file.
MEMORY_BYTES = 2 * 1024 * 1024


class OutputBuffer:
    """The retained output of one process, and the readers that wait for more."""

    __slots__ = (
        "_disk",
        "_dropped_events",
        "_events",
        "_gate",
        "_in_memory",
        "_limit",
        "_released",
        "_shut",
        "_spill",
        "_unread_batch",
        "_waiters",
        "dropped",
        "ended",
        "failure",
        "last_output",
        "paced",
        "total",
    )

    def __init__(
        self, limit: int = KEEP_OUTPUT, gate: Callable[[bool], None] | None = None
    ) -> None:
        """``gate`` is called with True to hold output back, with False to let it in again."""
        self._events: deque[OutputEvent] = deque()
        self._in_memory = 0  # bytes of output
        self._spill: OutputSpill | None = None
        self._disk = True  # the file can be written to
        self._unread_batch = 0  # there is no room in the file before this piece was read
        self._dropped_events = 0
        self._limit = limit
        self._gate = gate
        self.paced: set[Follower] = set()
        self._released = False
        self._shut = False
        self._waiters: list[asyncio.Future[None]] = []
        self.total = 0  # bytes, dropped ones included
        self.dropped = 0
        self.last_output = 0.0  # monotonic clock
        self.ended = False
        self.failure: HandrailError | None = None

    def add(self, kind: OutputKind, data: bytes, seq: int, omitted: int = 0) -> None:
        """Add the next piece; ``omitted`` bytes before it never arrived here."""
        self._events.append(OutputEvent(kind, data, seq, omitted))
        self.last_output = time.monotonic()
        self._in_memory += len(data)
        self.total += len(data) + omitted
        self.settle()
        self.wake()

    def keep(self, limit: int) -> None:
        """Keep so many bytes from now on."""
        self._limit = limit
        if self._spill is not None:
            self._spill.grow(limit)
        self.settle()

    def settle(self) -> None:
        """Drop what is too old and not waited for; hold back what cannot be kept for all."""
        if not self.total:
            return  # as long as nothing was written
        taken = min((reader.taken for reader in self.paced), default=None)
        while self.total - self.dropped > self._limit and self._drop_oldest(taken):
            pass
        while self._memory_full and (self._write_older_half(taken) or self._drop_oldest(taken)):
            pass
        unread = 0 if taken is None else self.total - taken[1]
        # Hysteresis: the gate does not move with every piece.
        most = self._limit // 2 if self._shut else self._limit - self._limit // 4
        shut = unread > most or (unread > 0 and self._memory_full)
        if shut is not self._shut and self._gate is not None:
            self._shut = shut
            self._gate(shut)

    @property
    def _memory_full(self) -> bool:
        pieces = len(self._events)  # the last one stays, however large it is
        return pieces > 1 and (self._in_memory > MEMORY_BYTES or pieces > RETENTION_CHUNKS)

    def _drop_oldest(self, taken: tuple[int, int] | None) -> bool:
        """Drop the oldest batch or piece, unless a paced reader wants it, or it is the last."""
        spill = self._spill
        if spill is not None and spill.batches:
            oldest = spill.batches[0]
            if taken is not None and taken[0] < oldest.end:
                return False
            del spill.batches[0]
            self._dropped_events = oldest.end
            self.dropped += oldest.output
            return True
        if len(self._events) < 2 or (taken is not None and taken[0] <= self._dropped_events):
            return False
        gone = self._events.popleft()
        self._in_memory -= len(gone.data)
        self._dropped_events += 1
        self.dropped += len(gone.data) + gone.omitted
        return True

    def _write_older_half(self, taken: tuple[int, int] | None) -> bool:
        """Move the older half of what is in memory to the file; whether that was possible."""
        if not self._disk or self._limit <= MEMORY_BYTES:
            return False
        if taken is not None and taken[0] < self._unread_batch:
            return False
        spill = self._spill
        if spill is None:
            from handrail.executor.output.spill import OutputSpill

            spill = self._spill = OutputSpill(self._limit)
        count = size = 0
        for event in islice(self._events, min(len(self._events) - 1, RETENTION_CHUNKS // 2)):
            if size >= MEMORY_BYTES // 2:
                break
            count += 1
            size += len(event.data)
        older = list(islice(self._events, count))
        while not spill.has_room(older):
            if not spill.batches:
                return False
            if not self._drop_oldest(taken):
                self._unread_batch = spill.batches[0].end
                return False
        try:
            spill.put(self._first_in_memory, older)
        except OSError:  # the disk is full, or there is none: memory is all there is
            self._disk = False
            return False
        for _ in older:
            self._events.popleft()
        self._in_memory -= size
        return True

    @property
    def _first_in_memory(self) -> int:
        spill = self._spill
        return spill.batches[-1].end if spill and spill.batches else self._dropped_events

    def end(self) -> None:
        """Mark the end of the output."""
        self.ended = True
        if self._shut and self._gate is not None:
            self._gate(False)
        self._gate = None  # it refers to this buffer, whose file would be closed late
        self.wake()

    def fail(self, error: HandrailError) -> None:
        """Mark the end of the output, some of which may be missing."""
        if not self.ended:
            self.failure = error
            self.end()

    def wake(self) -> None:
        """Wake all waiters."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for future in waiters:
                set_done(future)

    async def changed(self, timeout: float | None = None) -> None:
        """Return at the next change, or after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append(future)
        timer = None if timeout is None else loop.call_later(timeout, set_done, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._waiters:
                self._waiters.remove(future)

    def follow(self, *, paced: bool = False) -> Follower:
        """A reader from the first retained byte on; close it if it is ``paced``."""
        follower = Follower(self)
        if paced:
            self.pace(follower)
        return follower

    def pace(self, follower: Follower) -> None:
        """Have the process wait for this reader from now on."""
        if not self._released:
            self.paced.add(follower)
            self.settle()

    def unpace(self, follower: Follower) -> None:
        """Let the process go on without waiting for this reader."""
        if follower in self.paced:
            self.paced.discard(follower)
            self.settle()

    def release(self) -> None:
        """Hold output back for no reader from now on: the process is being ended.

        Readers that lag get what is retained, and the number of bytes that are not.
        """
        self._released = True
        self.paced.clear()
        self.settle()

    def since(self, position: int) -> tuple[int, bytes]:
        """Retained output from ``position`` on, and where it begins (later, if it was dropped)."""
        parts: list[bytes] = []
        at = self.total
        for event in reversed(self._events):
            if at <= position:
                break
            data = event.data
            at -= len(data)
            parts.append(data)
            if event.omitted:
                break  # no match spans a hole
        parts.reverse()
        text = b"".join(parts)
        if at < position:
            text, at = text[position - at :], position
        return at, text

    def pieces_at(self, number: int) -> tuple[int, Sequence[OutputEvent]]:
        """A batch of pieces with that of this number, counted from the first, and where it begins.

        It is empty when there is none yet.
        """
        first = self._first_in_memory
        if number < first and self._spill is not None:
            return self._spill.get(number)
        return number, [self._events[number - first]] if number - first < len(self._events) else []

    @property
    def last_seq(self) -> int:
        """The sequence number of the newest piece; 0: there is none."""
        return self._events[-1].seq if self._events else 0

    @property
    def first(self) -> int:
        """The count of the oldest retained event."""
        return self._dropped_events


class Follower:
    """One reader of an output buffer; an async iterator of OutputEvent."""

    __slots__ = ("_bytes", "_first", "_history", "_next", "_pieces")

    def __init__(self, history: OutputBuffer) -> None:
        self._history = history
        self._next = 0
        self._bytes = 0
        # What was read from the file at once, and the number of its first piece.
        self._first = 0
        self._pieces: Sequence[OutputEvent] = ()

    @property
    def taken(self) -> tuple[int, int]:
        """How many events and bytes it has read."""
        return self._next, self._bytes

    def close(self) -> None:
        """Stop reading; output is no longer held back for this reader."""
        self._history.unpace(self)

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> OutputEvent:
        history = self._history
        while (event := self._take()) is None:
            if history.ended:
                if history.failure is not None:
                    raise history.failure.with_traceback(None)
                raise StopAsyncIteration
            await history.changed()
        if history.paced:
            history.settle()
        return event

    def rest(self, most: int) -> list[OutputEvent] | None:
        """All there is to read, if it has ended and is no more than ``most`` bytes; else None."""
        history = self._history
        if not history.ended or history.failure is not None or history.total > most:
            return None
        return self.ready(most + 1)

    def ready(self, most: int) -> list[OutputEvent]:
        """What can be read without waiting: about ``most`` bytes."""
        events: list[OutputEvent] = []
        while most > 0 and (event := self._take()) is not None:
            events.append(event)
            most -= len(event.data)
        if events and self._history.paced:
            self._history.settle()
        return events

    def _take(self) -> OutputEvent | None:
        history = self._history
        missed = 0
        if self._next - self._first >= len(self._pieces):
            if self._next < history.first:
                missed = history.dropped - self._bytes
                self._next, self._bytes = history.first, history.dropped
            self._first, self._pieces = history.pieces_at(self._next)
            if not self._pieces:
                return None
        event = self._pieces[self._next - self._first]
        self._next += 1
        self._bytes += len(event.data) + event.omitted
        return event if not missed else replace(event, omitted=event.omitted + missed)
