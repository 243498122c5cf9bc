"""The descriptors that the keeper waits for: by ``poll`` while they are few, then by ``epoll``.

``poll`` needs no descriptor of its own, and a keeper with few children waits for some five of them:
the links, the listener and the signals.  Pidfds come with many children (``spawn_thread.py``).
"""

from __future__ import annotations

import select

#: From so many on the kernel looks at all of them in each turn for longer than ``epoll`` takes.
_MANY = 32


class Readiness:
    """Descriptors with the events that are waited for, as those of ``select.epoll``."""

    def __init__(self) -> None:
        self._few = select.poll()
        self._events: dict[int, int] = {}
        self._many: select.epoll | None = None

    def register(self, fd: int, events: int) -> None:
        """Wait for these events too; raises OSError."""
        if self._many is not None:
            self._many.register(fd, events)
            return
        self._few.register(fd, events)
        self._events[fd] = events
        if len(self._events) >= _MANY:
            self._become_many()

    def modify(self, fd: int, events: int) -> None:
        """Wait for other events of a descriptor."""
        if self._many is not None:
            self._many.modify(fd, events)
        else:
            self._few.modify(fd, events)
            self._events[fd] = events

    def unregister(self, fd: int) -> None:
        """Wait for a descriptor no longer; before it is closed."""
        if self._many is not None:
            self._many.unregister(fd)
        else:
            self._few.unregister(fd)
            del self._events[fd]

    def poll(self, seconds: float | None) -> list[tuple[int, int]]:
        """The descriptors that are ready, and their events; ``seconds``: to wait at most."""
        if self._many is not None:
            return self._many.poll(seconds)
        return self._few.poll(None if seconds is None else seconds * 1000)

    def _become_many(self) -> None:
        try:
            many = select.epoll()
        except OSError:
            return  # no descriptor is free: with the next one
        for fd, events in self._events.items():
            many.register(fd, events)
        self._events.clear()
        self._many = many
