"""The retained output of a process, for any number of readers.

Output is kept up to the retention, oldest dropped first.  Each reader has its own position: one
that lags gets what is left and the number of bytes it missed, and never blocks another.
Positions count bytes of all output in the order of the sequence numbers.

For a *paced* reader nothing is dropped that it has not read, and while half of the retention waits
for it, ``gate`` closes the input (back-pressure).  ``release`` ends that: the exit event comes
after the output, so ending a process must not wait for a reader.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from handrail.errors import HandrailError
from handrail.executor.base import OutputEvent, OutputKind
from handrail.process.output.output_log import RETENTION_BYTES, RETENTION_CHUNKS


class OutputBuffer:
    """The retained output of one process, and the readers that wait for more."""

    __slots__ = (
        "_dropped_events",
        "_events",
        "_gate",
        "_limit",
        "_released",
        "_shut",
        "_waiters",
        "dropped",
        "ended",
        "failure",
        "last_output",
        "paced",
        "total",
    )

    def __init__(
        self, limit: int = RETENTION_BYTES, gate: Callable[[bool], None] | None = None
    ) -> None:
        """``gate`` is called with True to hold output back, with False to let it in again."""
        self._events: deque[OutputEvent] = deque()
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
        self.total += len(data) + omitted
        self.settle()
        self.wake()

    def settle(self) -> None:
        """Drop what is too old and not waited for; hold back what cannot be kept for all."""
        events = self._events
        taken = min((reader.taken for reader in self.paced), default=None)
        while len(events) > 1 and (
            self.total - self.dropped > self._limit or len(events) > RETENTION_CHUNKS
        ):
            if taken is not None and taken[0] <= self._dropped_events:
                break
            gone = events.popleft()
            self._dropped_events += 1
            self.dropped += len(gone.data) + gone.omitted
        waiting = 0 if taken is None else self.total - taken[1]
        chunks = 0 if taken is None else self._dropped_events + len(events) - taken[0]
        share = 4 if self._shut else 2  # hysteresis: the gate does not move with every piece
        shut = waiting > self._limit // share or chunks > RETENTION_CHUNKS // share
        if shut is not self._shut and self._gate is not None:
            self._shut = shut
            self._gate(shut)

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self.wake()

    def fail(self, error: HandrailError) -> None:
        """Nothing more will come, and output may be missing."""
        if not self.ended:
            self.failure = error
            self.end()

    def wake(self) -> None:
        """Wake all waiters."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    async def changed(self, timeout: float | None = None) -> None:
        """Return at the next change, or after ``timeout`` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append(future)
        timer = None if timeout is None else loop.call_later(timeout, _wake, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._waiters:
                self._waiters.remove(future)

    def retained(self) -> list[OutputEvent]:
        """All retained output."""
        return list(self._events)

    def follow(self, *, paced: bool = False) -> Follower:
        """A reader from the first retained byte on; close it if it is ``paced``."""
        follower = Follower(self)
        if paced and not self._released:
            self.paced.add(follower)
            self.settle()
        return follower

    def unpace(self, follower: Follower) -> None:
        """Nothing waits for this reader any more."""
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

    def event_at(self, number: int) -> OutputEvent | None:
        """An event by its count from the first; None when there is none yet."""
        index = number - self._dropped_events
        return self._events[index] if index < len(self._events) else None

    @property
    def first(self) -> int:
        """The count of the oldest retained event."""
        return self._dropped_events


class Follower:
    """One reader of an output buffer; an async iterator of OutputEvent."""

    __slots__ = ("_bytes", "_history", "_next")

    def __init__(self, history: OutputBuffer) -> None:
        self._history = history
        self._next = 0
        self._bytes = 0

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
        while True:
            missed = 0
            if self._next < history.first:
                missed = history.dropped - self._bytes
                self._next, self._bytes = history.first, history.dropped
            event = history.event_at(self._next)
            if event is not None:
                self._next += 1
                self._bytes += len(event.data) + event.omitted
                if history.paced:
                    history.settle()
                return event if not missed else replace(event, omitted=event.omitted + missed)
            if history.ended:
                if history.failure is not None:
                    raise history.failure.with_traceback(None)
                raise StopAsyncIteration
            await history.changed()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
