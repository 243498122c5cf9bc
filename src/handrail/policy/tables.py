"""Names by what they do, from ``tables.txt``: the one place for the tables of the policy.

A section there begins with its title in brackets.  It has either words, or entries of the form
``keys: words`` with commas between the keys; an indented line continues an entry.
"""

from __future__ import annotations

import os
from functools import cache


def words(section: str) -> tuple[str, ...]:
    """The words of a section, in order."""
    return tuple(" ".join(_sections()[section]).split())


def names(section: str) -> frozenset[str]:
    """The words of a section."""
    return frozenset(words(section))


def entries(section: str) -> dict[str, tuple[str, ...]]:
    """The words of each key of a section."""
    found: dict[str, tuple[str, ...]] = {}
    for line in _sections()[section]:
        keys, _, rest = line.partition(":")
        found.update(dict.fromkeys((key.strip() for key in keys.split(",")), tuple(rest.split())))
    return found


@cache
def _sections() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    with open(os.path.join(os.path.dirname(__file__), "tables.txt"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("[") and line.endswith("]\n"):
                lines = sections[line[1:-2]] = []
            elif line.startswith(" "):
                lines[-1] += line
            elif not line.startswith("#") and line != "\n":
                lines.append(line)
    return sections
