"""How many sandboxes of one kind are to wait, by how often they are used.  Pure.

None is made for the first command of its kind: most programs start only one.  From the second on
there are twice as many as were used at once lately: commands come in bursts, with pauses between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

#: Of all kinds together.
MOST = 32
#: The uses of this time are one burst.
BURST_SECONDS = 2.0
#: How long they wait for the next.
KEEP_SECONDS = 30.0


class Demand:
    """The uses of one kind."""

    __slots__ = ("_burst", "_burst_at", "_first", "_recent")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=MOST)
        #: How many were used in the largest burst of late, and when.
        self._burst, self._burst_at = 0, 0.0
        self._first = True

    def used(self, now: float) -> None:
        """A command of this kind was started."""
        self._first = self.over(now)
        self._recent.append(now)
        burst = len(self._recent) - bisect_right(self._recent, now - BURST_SECONDS)
        if burst >= self._burst or now - self._burst_at > KEEP_SECONDS:
            self._burst, self._burst_at = burst, now

    def wanted(self, now: float) -> int:
        """How many are to wait now."""
        if self._first or self.over(now):
            return 0
        return min(MOST, 2 * self._burst) if now - self._burst_at <= KEEP_SECONDS else 1

    def over(self, now: float) -> bool:
        """Whether none is used any more."""
        return not self._recent or now - self._recent[-1] > KEEP_SECONDS
