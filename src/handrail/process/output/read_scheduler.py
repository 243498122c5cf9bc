"""Watch the streams of children, and bound the time that output takes of one turn of the loop.

The streams have an epoll descriptor of their own, and the loop watches that: for a stream that
lives for a millisecond, a handle of the loop costs four times as much as a line in this table.

With 200 streams that always have output, one step of each took 60 ms, and every request of every
client waited for all of them.  After ``_SECONDS`` the others wait in a queue for the next turn, in
between which sockets are looked at; first come, first served, so each gets the same share.
"""

from __future__ import annotations

import asyncio
import select
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

    __slots__ = (
        "_closing",
        "_epoll",
        "_first",
        "_looks",
        "_loop",
        "_steps",
        "_until",
        "_waiting",
        "_watched",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first: Stream | None = None
        self._steps = 0
        self._until = 0.0  # the end of this turn's time, once it is taken
        self._waiting: deque[Stream] = deque()
        # At once: when a child is there, all descriptors may be in use.
        self._epoll: select.epoll | None = select.epoll()
        self._looks = self._closing = False
        self._watched: dict[int, Stream] = {}

    def watch(self, stream: Stream) -> None:
        """Have ``Stream.readable`` called while there is something to read."""
        if self._epoll is None:
            self._epoll = select.epoll()
        if not self._looks:
            self._looks = True
            self._loop.add_reader(self._epoll.fileno(), self._readable)
        self._epoll.register(stream.fd, select.EPOLLIN)
        self._watched[stream.fd] = stream

    def unwatch(self, stream: Stream) -> None:
        """Watch a stream no longer; before its descriptor is closed, of which there are copies."""
        if self._epoll is not None and self._watched.pop(stream.fd, None) is not None:
            self._epoll.unregister(stream.fd)
            if self._closing:
                self.close()

    def close(self) -> None:
        """Let go of everything once no stream is left."""
        self._closing = True
        if self._epoll is not None and not self._watched:
            if self._looks:
                self._looks = False
                self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _readable(self) -> None:
        if self._epoll is None:
            return
        # All of them first: what one stream leads to may close others, and new ones get their fds.
        found = [(self._watched[fd], events) for fd, events in self._epoll.poll(0)]
        for stream, events in found:
            if stream.reading:
                stream.hung_up = not events & select.EPOLLIN
                try:
                    stream.readable()
                except Exception as error:  # noqa: BLE001 (one that fails must not stop the others)
                    told = {"message": "the output of a process was not read", "exception": error}
                    self._loop.call_exception_handler(told)

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
