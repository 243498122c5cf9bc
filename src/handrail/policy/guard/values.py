"""What the variables of a script may hold, as far as the guard has to know.

A variable that the script never sets has the caller's value, which the script cannot choose; for
the others every value that is set anywhere counts.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

from handrail.policy.guard.words import (
    ELEMENTS,
    GAP,
    LISTING,
    MADE,
    NUMBER,
    PART_OF,
    PATH_OF,
    PROGRAM,
    Word,
)

_INTEGER = re.compile(r"-?\d*", re.ASCII)
#: Stands for a value of the caller: a character that is in no name of a command.
CALLERS = "\ue000"
#: What a list of files, or a text with the name in it, would make more of.
UNUSUAL_NAME = re.compile(r"\s-\w|[\n'\"`$;|&<>#]")
#: So many texts of one word are looked at.
_MOST_TEXTS = 16


def variables(source: str) -> set[str]:
    """The variables that a source names."""
    for prefix in (ELEMENTS, PATH_OF, PART_OF):
        source = source.removeprefix(prefix)
    return set(source.split())


class Values:
    """The values that variables are given."""

    def __init__(self) -> None:
        self.assigned: defaultdict[str, list[Word]] = defaultdict(list)
        #: A declaration changes the letters of values.
        self.changes_case = False
        #: The script may make files of any name, so that a list of files is of its making.
        self.makes_any_name = False

    def is_operand(self, word: Word) -> bool:
        """True if the word is certainly no option."""
        if word.value is not None:
            return not word.value.startswith("-")
        if word.one and word.prefix:
            return not word.prefix.startswith("-")
        return self.is_quiet(word)

    def is_quiet(self, word: Word, seen: frozenset[str] = frozenset()) -> bool:
        """True if no part of the word can be an option of the script's making."""
        # An unknown part may be empty: ``${u}-exec`` is an option then.
        literal = word.literal if word.value is None else word.value
        if any(part.startswith("-") for part in literal.split()):
            return False
        if "IFS" in self.assigned and "-" in literal:
            return False  # words may be split in front of it
        return all(self._is_quiet_source(source, seen) for source in word.sources)

    def _is_quiet_source(self, source: str, seen: frozenset[str]) -> bool:
        if source == LISTING and self.makes_any_name:
            return False
        if source in (LISTING, NUMBER, PROGRAM) or source in seen:
            return True
        if source.startswith(PART_OF):
            name = source.removeprefix(PART_OF)
            values = self.assigned.get(name, ())
            return all(
                "-" not in word.literal and self.is_quiet(word, seen | {name}) for word in values
            )
        if source.startswith((ELEMENTS, PATH_OF)):
            return all(self._is_quiet_source(name, seen) for name in variables(source))
        if source.startswith("#"):
            return False
        values = self.assigned.get(source, ())
        return all(self.is_quiet(word, seen | {source}) for word in values)

    def is_number(self, source: str, seen: frozenset[str] = frozenset()) -> bool:
        """True if arithmetic finds a number in this variable."""
        if source == NUMBER or source in seen:
            return True
        source = source.removeprefix(ELEMENTS)
        if source.startswith("#") or not source.isidentifier():
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
            if source in (LISTING, NUMBER, PROGRAM) or source in seen:
                continue
            if source.startswith("#") and not source.startswith((ELEMENTS, PATH_OF)):
                return False
            for name in variables(source) - seen:
                inner = self.assigned.get(name, ())
                if not all(self.has_no_index(one, seen | {name}) for one in inner):
                    return False
        return True

    def is_plain_name(self, word: Word, seen: frozenset[str] = frozenset()) -> bool:
        """True if a file of this name is certainly no more than one plain word anywhere."""
        if UNUSUAL_NAME.search(word.literal):
            return False
        return all(
            source in (LISTING, NUMBER, PROGRAM)
            or (
                source != MADE
                and all(
                    self.is_plain_name(value, seen | {name})
                    for name in variables(source) - seen
                    for value in self.assigned.get(name, ())
                )
            )
            for source in word.sources
        )

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

    def renderings(self, word: Word) -> list[str] | None:
        """All that a word can be, with ``CALLERS`` for the caller's values; None: not certain."""
        if word.value is not None:
            return [word.value]
        if not word.one or word.template.count(GAP) != len(word.sources) or self.changes_case:
            return None
        choices = [self._choices(source) for source in word.sources]
        count = 1
        for one in choices:
            count *= len(one)
        if not 0 < count <= _MOST_TEXTS:
            return None
        pieces = word.template.split(GAP)
        return [
            "".join(itertools.chain.from_iterable(zip(pieces, (*chosen, ""), strict=True)))
            for chosen in itertools.product(*choices)
        ]

    def _choices(self, source: str) -> list[str]:
        """The values of a source; none if they are not certain.  It may be unset each time."""
        if source == NUMBER:
            return ["1"]
        if source.startswith("#"):
            return []
        values = self.assigned.get(source)
        if not values:
            return [CALLERS, ""]
        found = [one.value for one in values]
        if None not in found:
            return [*dict.fromkeys(one for one in found if one is not None), ""]
        return ["1", ""] if self.is_number(source) else []
