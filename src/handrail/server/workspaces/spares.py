"""Things that are made ahead, several at a time, while they are asked for.

Handing work to a thread costs more than the few system calls that one of these things takes.  They
are made a moment later, not beside the request that has taken one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Seconds until more are made, unless none is left.
_PAUSE_SECONDS = 0.05


class Spares(Generic[T]):
    """As many as were asked for lately, up to a bound; made anew when half of them are gone."""

    def __init__(
        self,
        most: int,
        make: Callable[[int], Awaitable[list[T]]],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        """``make`` makes some, fewer if it cannot; ``spawn`` runs it beside everything else."""
        self._most = most
        self._make = make
        self._spawn = spawn
        self._ready: list[T] = []
        self._making = False
        self._asked = False  # since the last look
        self._closed = False
        #: How many there are to be.
        self.wanted = 0

    def take(self) -> T | None:
        """One, which belongs to the caller now; None: there is none."""
        self._asked = True
        self.wanted = min(self._most, self.wanted + 1)
        found = self._ready.pop() if self._ready else None
        if not self._making and 2 * len(self._ready) < self.wanted and not self._closed:
            self._making = True
            self._spawn(self._refill())
        return found

    def take_ready(self) -> T | None:
        """One of those that are there, without having more made; None: there is none."""
        return self._ready.pop() if self._ready else None

    def put_back(self, one: T) -> None:
        """Keep one that was taken and not used."""
        self._ready.append(one)

    async def _refill(self) -> None:
        try:
            if self._ready:
                await asyncio.sleep(_PAUSE_SECONDS)
            made = await self._make(self.wanted - len(self._ready))
            # Not in one statement with the wait: that would add to the list as it was before, and
            # bring back what was given up meanwhile.
            self._ready += made
        finally:
            self._making = False

    def unused(self) -> bool:
        """Called now and then: whether none was asked for since the last time."""
        asked, self._asked = self._asked, False
        return not asked

    @property
    def any(self) -> bool:
        """Whether there are some, or are to be."""
        return bool(self._ready) or self.wanted > 0

    def give_up(self) -> list[T]:
        """Those that are there, to be removed."""
        self.wanted = 0
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Make no more; what is being made is the concern of ``make``."""
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed
