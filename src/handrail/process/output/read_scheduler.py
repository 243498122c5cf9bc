"""Bound the time that output takes of one turn of the event loop.

With 200 streams that always have output, one step of each took 60 ms, and every request of every
client waited for all of them.  After ``_SECONDS`` the others wait in a queue for the next turn, in
between which sockets are looked at; first come, first served, so each gets the same share.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from handrail.process.output.stream import Stream

_SECONDS = 0.003
#: So many streams in one turn are many.  Of fewer, the first comes again before that: then a new
#: turn has begun, and nothing needs to be measured.
_STEPS = 12


class ReadScheduler:
    """The streams of one event loop that have output and wait for their turn."""

    __slots__ = ("_first", "_loop", "_steps", "_until", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first: Stream | None = None
        self._steps = 0
        self._until = 0.0  # the end of this turn's time, once it is taken
        self._waiting: deque[Stream] = deque()

    def grant(self, stream: Stream) -> bool:
        """Whether a stream may be read now; else it is read in one of the next turns."""
        if not self._waiting:
            if not self._until:
                if stream is self._first:
                    self._steps = 1
                    return True
                self._steps += 1
                if self._steps == 1:
                    self._first = stream
                elif self._steps >= _STEPS:
                    self._until = perf_counter() + _SECONDS
                    self._loop.call_soon(self._turn_over)
                return True
            if perf_counter() < self._until:
                return True
            self._loop.call_soon(self._serve)
        if not stream.queued:
            stream.queued = True
            self._waiting.append(stream)
        return False

    def _turn_over(self) -> None:
        self._first = None
        self._steps = 0
        self._until = 0.0

    def _serve(self) -> None:
        """Read streams that have waited, until the time of this turn is over."""
        until = perf_counter() + _SECONDS
        try:
            while self._waiting:
                stream = self._waiting.popleft()
                stream.queued = False
                stream.take_turn()
                if perf_counter() >= until:
                    break
        finally:  # one that fails must not stop the others
            if self._waiting:
                self._loop.call_soon(self._serve)
