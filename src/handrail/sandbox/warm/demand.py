"""How many sandboxes of one kind are to wait, by how often they are used.  Pure.

None is made for the first command of its kind: most programs start only one.  From the second on
there are twice as many as were used in the last seconds, and a last one waits a while longer.
"""

from __future__ import annotations

from collections import deque

#: Of all kinds together.
MOST = 32
#: The uses of this time count.
RECENT_SECONDS = 2.0
#: How long the last one waits.
KEEP_SECONDS = 30.0
#: The same where names of the host are covered by placeholders, which are there as long.
KEEP_VISIBLE_SECONDS = 0.5


class Demand:
    """The uses of one kind."""

    __slots__ = ("_first", "_keep", "_recent")

    def __init__(self, *, visible: bool) -> None:
        #: Whether those that wait are seen on the host.
        self._keep = KEEP_VISIBLE_SECONDS if visible else KEEP_SECONDS
        self._recent: deque[float] = deque(maxlen=MOST)
        self._first = True

    def used(self, now: float) -> None:
        """A command of this kind was started."""
        self._first = not self._recent or now - self._recent[-1] > self._keep
        self._recent.append(now)

    def wanted(self, now: float) -> int:
        """How many are to wait now."""
        if self._first or self.over(now):
            return 0
        lately = sum(now - use < RECENT_SECONDS for use in self._recent)
        return max(1, min(MOST, 2 * lately))

    def over(self, now: float) -> bool:
        """Whether none is used any more."""
        return not self._recent or now - self._recent[-1] > self._keep
