"""Watches the descriptors of listeners and tunnels with one epoll, which the loop sees as one.

The loop makes an object for each descriptor that it watches, and another one each time that it is
ready.  For a short tunnel that took longer than what was then done.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
#: Descriptors that are served before the loop does other things.
_AT_ONCE = 64

Call = Callable[[int], None]


class Readiness:
    """Calls a function with the events of its descriptor, again and again while there are any.

    It may be called without a reason: for a descriptor that has the number of one closed before.
    """

    __slots__ = ("_calls", "_epoll")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Call] = {}
        loop.add_reader(self._epoll.fileno(), self._turn)

    def watch(self, fd: int, events: int, call: Call) -> None:
        """Watch a descriptor; its end and its errors are told too."""
        self._epoll.register(fd, events)
        self._calls[fd] = call

    def change(self, fd: int, events: int) -> None:
        """Watch for other events."""
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Watch no more a descriptor that stays open."""
        del self._calls[fd]
        self._epoll.unregister(fd)

    def closing(self, fd: int) -> None:
        """The descriptor is about to be closed: the kernel then forgets it by itself."""
        self._calls.pop(fd, None)

    def _turn(self) -> None:
        calls = self._calls
        for fd, events in self._epoll.poll(0, _AT_ONCE):
            call = calls.get(fd)
            if call is not None:
                call(events)
