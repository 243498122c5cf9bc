"""Find the trees of keepers that are gone by their tags, and kill them.

A keeper that was killed leaves its children to a parent that does not know them; what it had
started can still be told by its mark (``RLIMIT_LOCKS`` in ``keeper``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from handrail.keeper import tree

#: A keeper counts upwards from a random multiple of this; so many children are its own.
SPAN = 1 << 24


def end(marks: Collection[int]) -> int:
    """Kill these trees; returns how many processes that were."""
    return tree.kill_afar(None, marks) if marks else 0


def end_all_of(keepers: Iterable[int], but: Collection[int] = ()) -> int:
    """Kill everything that keepers with these first tags have started; ``but``: tags to leave.

    Says how many processes were found.
    """
    return tree.kill_afar(None, _Started(keepers, but))


def any_of(keepers: Iterable[int]) -> bool:
    """Whether a process lives that keepers with these first tags have started, or one of them."""
    return tree.send_afar(None, _Started(keepers, ()), 0) > 0


def started_any(keeper: int, marks: Collection[int]) -> bool:
    """Whether the keeper with this first tag has started one of these trees."""
    return any(mark in range(keeper, keeper + SPAN) for mark in marks)


class _Started:
    """The tags of everything that some keepers have started."""

    def __init__(self, keepers: Iterable[int], but: Collection[int]) -> None:
        self._spans = [range(first, first + SPAN) for first in keepers]
        self._but = but

    def __contains__(self, mark: object) -> bool:  # a number; of all else a range asks each
        return mark not in self._but and any(mark in span for span in self._spans)
