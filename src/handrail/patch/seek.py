"""Find a block of lines in a file: exactly if possible, then ever more leniently.  Pure.

Each level is tried over the whole range before the next one, so an exact match far down wins over a
lenient one further up; within a level the first position wins.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from handrail.patch.white_space import strip, strip_end

# What editors and models type for the plain character of a source file.
_TYPOGRAPHIC = str.maketrans(
    {
        **dict.fromkeys([*map(chr, range(0x2010, 0x2016)), "\u2212"], "-"),
        **dict.fromkeys(map(chr, range(0x2018, 0x201C)), "'"),
        **dict.fromkeys(map(chr, range(0x201C, 0x2020)), '"'),
        **dict.fromkeys(
            ["\u00a0", *map(chr, range(0x2002, 0x200B)), "\u202f", "\u205f", "\u3000"], " "
        ),
    }
)


class Level(enum.IntEnum):
    """How two lines were compared, strictest first."""

    EXACT = 0
    TRAILING = 1  # white space at the end ignored
    AROUND = 2  # white space at both ends ignored
    TYPOGRAPHIC = 3  # as AROUND, and dashes, quotes and blanks made plain


def plain(line: str) -> str:
    """``line`` as level TYPOGRAPHIC sees it."""
    return strip(line).translate(_TYPOGRAPHIC)


_VIEWS: dict[Level, Callable[[str], str]] = {
    Level.EXACT: str,
    Level.TRAILING: strip_end,
    Level.AROUND: strip,
    Level.TYPOGRAPHIC: plain,
}


@dataclass(frozen=True, slots=True)
class Match:
    """Where a block begins, how it was found, and whether it occurs elsewhere just as well."""

    position: int
    level: Level = Level.EXACT
    ambiguous: bool = False


class Haystack:
    """The lines of one file, searched again and again.

    Each level's view of the lines is made once, when a search first gets that far.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self._views: dict[Level, list[str]] = {}

    def __len__(self) -> int:
        return len(self.lines)

    def find(self, block: Sequence[str], start: int, *, at_end: bool = False) -> Match | None:
        """The first position at or after ``start`` where ``block`` occurs.

        ``at_end``: only the last possible position counts.  An empty block is found at ``start``.
        """
        if not block:
            return Match(start)
        last = len(self.lines) - len(block)
        first = last if at_end else start
        if first < start or first > last:
            return None
        for level, view in _VIEWS.items():
            wanted = [view(line) for line in block]
            position = self._scan(self._view(level), wanted, first, last)
            if position is not None:
                again = self._scan(self._view(level), wanted, position + 1, last)
                return Match(position, level, again is not None)
        return None

    def _view(self, level: Level) -> list[str]:
        if level not in self._views:
            self._views[level] = [_VIEWS[level](line) for line in self.lines]
        return self._views[level]

    @staticmethod
    def _scan(lines: list[str], block: list[str], first: int, last: int) -> int | None:
        # list.index runs in C: most lines of a file are no candidate.
        size = len(block)
        while first <= last:
            try:
                first = lines.index(block[0], first, last + 1)
            except ValueError:
                return None
            if lines[first : first + size] == block:
                return first
            first += 1
        return None
