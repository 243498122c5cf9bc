"""Search a pattern in a stream of output, in time linear in the stream.  Pure.

Patterns come from clients, and the engine of ``re`` can take forever on some of them, during
which no other client is served.  So a pattern is made into a machine that looks at each byte once:
a set of states per position, remembered as one state the next time the same set is met.  What
such a machine cannot do (back references, looking around) is refused.

The syntax is that of ``re`` over UTF-8, with ``^`` and ``$`` at lines.  The match that ends first
counts, and only its end is known.
"""

from __future__ import annotations

import re
import re._constants as ops  # type: ignore[import-not-found]  # the parser of re, missing in the stubs
import re._parser as parser  # type: ignore[import-not-found]
from typing import Any

from handrail.errors import UsageError

#: States a pattern may have; counted repetitions are written out.
MOST_STATES = 2000
_LONGEST = 4000
_MOST_REMEMBERED = 512

# What is on one side of a position.
_EDGE, _NEWLINE, _WORD, _OTHER = range(4)
_KIND = bytes(
    _NEWLINE if b == 10 else _WORD if (chr(b).isalnum() and b < 128) or b == 95 else _OTHER
    for b in range(256)
)
_ALL = (1 << 256) - 1
_ACCEPT = 0


class PatternRefused(UsageError):
    """This pattern cannot be waited for here."""


class _Builder:
    """Pattern -> states.  Each is (bytes it takes, next) or (condition, nexts)."""

    def __init__(self, flags: int) -> None:
        self._ignore_case = bool(flags & re.IGNORECASE)
        self._dot_all = bool(flags & re.DOTALL)
        self.takes: list[tuple[int, int] | None] = [None]
        self.leads: list[tuple[Any, tuple[int, ...]] | None] = [None]

    def _add(self, takes: tuple[int, int] | None, leads: tuple[Any, tuple[int, ...]] | None) -> int:
        if len(self.takes) >= MOST_STATES:
            raise PatternRefused("the pattern is too large; make it shorter")
        self.takes.append(takes)
        self.leads.append(leads)
        return len(self.takes) - 1

    def sequence(self, items: Any, then: int) -> int:
        for op, value in reversed(list(items)):
            then = self.item(op, value, then)
        return then

    def item(self, op: Any, value: Any, then: int) -> int:
        if op is ops.LITERAL:
            return self._add((self._literal(value), then), None)
        if op is ops.NOT_LITERAL:
            return self._add((_ALL & ~self._literal(value), then), None)
        if op is ops.ANY:
            return self._add((_ALL if self._dot_all else _ALL & ~(1 << 10), then), None)
        if op is ops.IN:
            return self._add((self._one_of(value), then), None)
        if op is ops.BRANCH:
            return self._add(None, (None, tuple(self.sequence(way, then) for way in value[1])))
        if op is ops.SUBPATTERN:
            _, add, remove, inner = value
            if add or remove:
                raise PatternRefused("flags for a part of a pattern are not supported")
            return self.sequence(inner, then)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            least, most, inner = value
            return self._repeat(least, most, inner, then)
        if op is ops.AT:
            return self._add(None, (value, (then,)))
        raise PatternRefused(
            f"{str(op).lower()} in a pattern is not supported; use plain repetitions,"
            " classes and alternatives"
        )

    def _repeat(self, least: int, most: Any, inner: Any, then: int) -> int:
        if most is ops.MAXREPEAT:
            loop = self._add(None, (None, ()))
            again = self.sequence(inner, loop)
            self.leads[loop] = (None, (again, then))
            then = loop
        else:
            for _ in range(most - least):
                then = self._add(None, (None, (self.sequence(inner, then), then)))
        for _ in range(least):
            then = self.sequence(inner, then)
        return then

    def _literal(self, byte: int) -> int:
        mask = 1 << byte
        if self._ignore_case and byte < 128:
            mask |= 1 << ord(chr(byte).lower()) | 1 << ord(chr(byte).upper())
        return mask

    def _one_of(self, items: Any) -> int:
        mask = 0
        negated = False
        for op, value in items:
            if op is ops.NEGATE:
                negated = True
            elif op is ops.LITERAL:
                mask |= self._literal(value)
            elif op is ops.RANGE:
                for byte in range(value[0], value[1] + 1):
                    mask |= self._literal(byte)
            else:
                mask |= _CATEGORIES[value]
        return _ALL & ~mask if negated else mask


def _mask(text: bytes) -> int:
    mask = 0
    for byte in text:
        mask |= 1 << byte
    return mask


_DIGITS, _SPACES = _mask(b"0123456789"), _mask(b" \t\n\r\f\v")
_WORDS = _mask(bytes(b for b in range(256) if _KIND[b] == _WORD))
_CATEGORIES = {
    ops.CATEGORY_DIGIT: _DIGITS,
    ops.CATEGORY_NOT_DIGIT: _ALL & ~_DIGITS,
    ops.CATEGORY_SPACE: _SPACES,
    ops.CATEGORY_NOT_SPACE: _ALL & ~_SPACES,
    ops.CATEGORY_WORD: _WORDS,
    ops.CATEGORY_NOT_WORD: _ALL & ~_WORDS,
}


def _holds(condition: Any, before: int, after: int) -> bool:
    if condition is None:
        return True
    if condition is ops.AT_BEGINNING:
        return before in (_EDGE, _NEWLINE)
    if condition is ops.AT_END:
        return after in (_EDGE, _NEWLINE)
    if condition is ops.AT_BEGINNING_STRING:
        return before == _EDGE
    if condition is ops.AT_END_STRING:
        return after == _EDGE
    at_boundary = (before == _WORD) != (after == _WORD)
    return at_boundary == (condition is ops.AT_BOUNDARY)


class _Place:
    """What is known at one position: the states reached, and what each next byte leads to."""

    __slots__ = ("before", "core", "next")

    def __init__(self, core: frozenset[int], before: int) -> None:
        self.core = core
        self.before = before
        self.next: list[_Place | bool | None] = [None] * 256


class Search:
    """One pattern searched in one stream, fed in pieces of any size."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _LONGEST:
            raise PatternRefused(f"a pattern has at most {_LONGEST} characters")
        try:
            tree = parser.parse(pattern.encode("utf-8", "surrogateescape"), re.MULTILINE)
        except (re.error, OverflowError, RecursionError) as error:
            shown = pattern[:80]
            raise PatternRefused(f"the pattern {shown!r} does not compile: {error}") from None
        builder = _Builder(tree.state.flags)
        try:
            self._start = builder.sequence(tree, _ACCEPT)
        except RecursionError:
            raise PatternRefused("the pattern is nested too deeply") from None
        self._takes, self._leads = builder.takes, builder.leads
        self._places: dict[tuple[frozenset[int], int], _Place] = {}
        self._place = self._find(frozenset(), _EDGE)

    def reset(self) -> None:
        """Start anew: the next bytes do not follow those fed before."""
        self._place = self._find(frozenset(), _EDGE)

    def feed(self, data: bytes) -> int | None:
        """Feed the next bytes; returns how many of them precede the end of the first match."""
        place = self._place
        for index, byte in enumerate(data):
            following = place.next[byte]
            if following is None:
                following = self._step(place, byte)
            if following is True:
                return index
            place = following  # type: ignore[assignment]
        self._place = place
        return None

    def ends_here(self) -> bool:
        """Whether the pattern matches if nothing follows."""
        return _ACCEPT in self._reach(self._place, _EDGE)

    def _step(self, place: _Place, byte: int) -> _Place | bool:
        reached = self._reach(place, _KIND[byte])
        following: _Place | bool = True
        if _ACCEPT not in reached:
            bit = 1 << byte
            core = set()
            for state in reached:
                takes = self._takes[state]
                if takes is not None and takes[0] & bit:
                    core.add(takes[1])
            following = self._find(frozenset(core), _KIND[byte])
        place.next[byte] = following
        return following

    def _reach(self, place: _Place, after: int) -> set[int]:
        """Every state that is reached without consuming a byte; a match may begin anywhere."""
        reached: set[int] = set()
        todo = [self._start, *place.core]
        while todo:
            state = todo.pop()
            if state in reached:
                continue
            reached.add(state)
            leads = self._leads[state]
            if leads is not None and _holds(leads[0], place.before, after):
                todo.extend(leads[1])
        return reached

    def _find(self, core: frozenset[int], before: int) -> _Place:
        place = self._places.get((core, before))
        if place is None:
            if len(self._places) >= _MOST_REMEMBERED:
                self._places.clear()  # and with them what they lead to, when no thread stands there
            place = self._places[core, before] = _Place(core, before)
        return place
