"""Watch the streams of children, and bound the time that output takes of one turn of the loop.

The streams have an epoll descriptor of their own, and the loop watches that: for a stream that
lives for a millisecond, a handle of the loop costs four times as much as a line in this table.
A stream that alone has output for many turns gets such a handle after all, which saves a system
call for each step.  A server without children has no such descriptor: it is closed when none has
come for a while.

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
    from collections.abc import Callable

    from handrail.process.output.stream import Stream

_SECONDS = 0.003
#: Without a child; opening it again takes 15 us.
_IDLE_SECONDS = 0.1
#: The same while there are children, of which none has streams: they may live long.
_CHILD_SECONDS = 1.0
#: After so many turns in which it alone had output, a stream is watched by the loop itself.
_ALONE_TURNS = 4
#: So many streams in one turn are many.  Of fewer, the first comes again before that: then a new
#: turn has begun, and nothing needs to be measured.
_STEPS = 12


class ReadScheduler:
    """The streams of one event loop that have output and wait for their turn."""

    __slots__ = (
        "_by_loop",
        "_closing",
        "_epoll",
        "_first",
        "_has_children",
        "_idle",
        "_last",
        "_last_turns",
        "_loop",
        "_opened",
        "_steps",
        "_until",
        "_waiting",
        "_watched",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, has_children: Callable[[], bool] = lambda: False
    ) -> None:
        """``has_children``: whether there are, or may soon be, some that have streams."""
        self._loop = loop
        self._has_children = has_children
        self._first: Stream | None = None
        self._steps = 0
        self._until = 0.0  # the end of this turn's time, once it is taken
        self._waiting: deque[Stream] = deque()
        self._epoll: select.epoll | None = None
        self._opened = self._closing = False
        self._idle: asyncio.TimerHandle | None = None
        self._watched: dict[int, Stream] = {}
        self._by_loop: set[int] = set()  # those of them that the loop itself watches
        self._last: Stream | None = None  # the one that alone had output in the last turn
        self._last_turns = 0

    def open(self) -> select.epoll:
        """Have a descriptor for the streams of a child, before it starts; raises OSError.

        When the child is there, all descriptors may be in use.
        """
        self._opened = True
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._readable)
            self._await_idle()
        return self._epoll

    def watch(self, stream: Stream) -> None:
        """Have ``Stream.readable`` called while there is something to read."""
        self.open().register(stream.fd, select.EPOLLIN)
        self._watched[stream.fd] = stream

    def unwatch(self, stream: Stream) -> None:
        """Watch a stream no longer; before its descriptor is closed, of which there are copies."""
        if self._epoll is not None and self._watched.pop(stream.fd, None) is not None:
            if stream.fd in self._by_loop:
                self._by_loop.remove(stream.fd)
                self._loop.remove_reader(stream.fd)
            else:
                self._epoll.unregister(stream.fd)
            if self._closing:
                self.close()
            elif not self._watched:
                self._await_idle()

    def close(self) -> None:
        """Let go of everything once no stream is left."""
        self._closing = True
        if not self._watched:
            self._close()

    def _close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _await_idle(self, seconds: float = _IDLE_SECONDS) -> None:
        """Close the descriptor when there was no child for a while."""
        if self._idle is None:
            self._opened = False
            self._idle = self._loop.call_later(seconds, self._is_idle)

    def _is_idle(self) -> None:
        self._idle = None
        if self._watched:
            return  # until the last of them is not
        # In the meantime one child follows the other, or a start has not come to its end.
        if self._opened:
            self._await_idle()
        elif self._has_children():
            self._await_idle(_CHILD_SECONDS)
        else:
            self._close()

    def _readable(self) -> None:
        if self._epoll is None:
            return
        # All of them first: what one stream leads to may close others, and new ones get their fds.
        found = [(self._watched[fd], events) for fd, events in self._epoll.poll(0)]
        if len(found) == 1 and found[0][0] is self._last:
            self._last_turns += 1
            if self._last_turns >= _ALONE_TURNS:
                self._leave_to_loop(self._last)
        else:
            self._last = found[0][0] if len(found) == 1 else None
            self._last_turns = 0
        for stream, events in found:
            if stream.reading:
                stream.hung_up = not events & select.EPOLLIN
                try:
                    stream.readable()
                except Exception as error:  # noqa: BLE001 (one that fails must not stop the others)
                    told = {"message": "the output of a process was not read", "exception": error}
                    self._loop.call_exception_handler(told)

    def _leave_to_loop(self, stream: Stream) -> None:
        if self._epoll is not None:
            self._epoll.unregister(stream.fd)
            self._loop.add_reader(stream.fd, stream.readable)
            self._by_loop.add(stream.fd)
        self._last = None

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
