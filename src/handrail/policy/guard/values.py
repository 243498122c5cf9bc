"""What the variables of a script may hold, as far as the guard has to know.

A variable that the script never sets has the caller's value, which the script cannot choose; for
the others every value that is set anywhere counts.
"""

from __future__ import annotations

import re
from collections import defaultdict

from handrail.policy.guard.words import LISTING, NUMBER, PART_OF, Word

_INTEGER = re.compile(r"-?\d*", re.ASCII)


class Values:
    """The values that variables are given."""

    def __init__(self) -> None:
        self.assigned: defaultdict[str, list[Word]] = defaultdict(list)

    def is_operand(self, word: Word) -> bool:
        """True if the word is certainly no option."""
        if word.value is not None:
            return not word.value.startswith("-")
        if word.one and word.prefix:
            return not word.prefix.startswith("-")
        return self.is_quiet(word)

    def is_quiet(self, word: Word, seen: frozenset[str] = frozenset()) -> bool:
        """True if no part of the word can be an option chosen by the script."""
        if word.value is not None:
            return not any(part.startswith("-") for part in word.value.split())
        # An unknown part may be empty: ``${u}-exec`` is an option then.
        if any(part.startswith("-") for part in word.literal.split()):
            return False
        return all(self._is_quiet_source(source, seen) for source in word.sources)

    def _is_quiet_source(self, source: str, seen: frozenset[str]) -> bool:
        if source in (LISTING, NUMBER) or source in seen:
            return True
        if source.startswith(PART_OF):
            name = source.removeprefix(PART_OF)
            values = self.assigned.get(name, ())
            return all(
                "-" not in word.literal and self.is_quiet(word, seen | {name}) for word in values
            )
        if source.startswith("#"):
            return False
        values = self.assigned.get(source, ())
        return all(self.is_quiet(word, seen | {source}) for word in values)

    def is_number(self, source: str, seen: frozenset[str] = frozenset()) -> bool:
        """True if arithmetic finds a number in this variable."""
        if source == NUMBER or source in seen:
            return True
        if source.startswith("#") or source.isdigit():
            return False
        return all(
            bool(_INTEGER.fullmatch(word.literal))
            and all(self.is_number(inner, seen | {source}) for inner in word.sources)
            for word in self.assigned.get(source, ())
        )

    def has_no_index(self, word: Word, seen: frozenset[str] = frozenset()) -> bool:
        """True if the word has no ``name[..]``, which some commands evaluate."""
        if "[" in word.literal:
            return False
        for source in word.sources:
            if source in (LISTING, NUMBER) or source in seen:
                continue
            if source.startswith("#"):
                return False
            inner = self.assigned.get(source, ())
            if not all(self.has_no_index(one, seen | {source}) for one in inner):
                return False
        return True

    def is_there(self, word: Word) -> bool:
        """True if the word is certainly not empty, so that it does not vanish."""
        if word.one or word.literal:
            return True
        return all(
            not source.startswith("#")
            and bool(self.assigned.get(source))
            and all(value.literal for value in self.assigned[source])
            for source in word.sources
        )

    def is_outside(self, word: Word) -> bool:
        """True if every unknown part of the word is the caller's."""
        return all(
            not source.startswith("#") and source not in self.assigned for source in word.sources
        )

    def texts(self, word: Word) -> list[str] | None:
        """The values that a word can have, if they are all in the script."""
        if word.value is not None:
            return [word.value]
        if len(word.sources) != 1 or word.literal:
            return None
        found = [one.value for one in self.assigned.get(word.sources[0], ())]
        return None if None in found or not found else [one for one in found if one is not None]
