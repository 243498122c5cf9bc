"""Patterns for JSON values, and the placeholders that are filled in before.  Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def substitute(value: Any, names: Mapping[str, Any]) -> Any:
    """Fill ``${NAME}`` in every string; unknown names stay, they may be patterns."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda m: str(names.get(m[1], m[0])), value)
    if isinstance(value, list):
        return [substitute(item, names) for item in value]
    if isinstance(value, dict):
        return {
            key if key.startswith("$") else substitute(key, names): substitute(item, names)
            for key, item in value.items()
        }
    return value


def match(pattern: Any, got: Any) -> bool:
    """Does a value fit?  Plain values must be equal, and of the same type."""
    if isinstance(pattern, str) and pattern in WILDCARDS:
        return WILDCARDS[pattern](got)
    if isinstance(pattern, dict):
        for name, holds in OPERATORS.items():
            if name in pattern:
                return holds(pattern[name], got)
        return isinstance(got, dict) and set(pattern) == set(got) and subset(pattern, got)
    if isinstance(pattern, list):
        return isinstance(got, list) and len(pattern) == len(got) and all(map(match, pattern, got))
    return type(pattern) is type(got) and bool(pattern == got)


def subset(pattern: Mapping[str, Any], got: Any) -> bool:
    """Every member of the pattern is there and fits; others may be there too."""
    return isinstance(got, dict) and all(
        key in got and match(item, got[key]) for key, item in pattern.items()
    )


def contains(pattern: str, got: Any) -> bool:
    """A piece of text is in it."""
    return isinstance(got, str) and pattern in got


def regex(pattern: str, got: Any) -> bool:
    """A regular expression is found somewhere in it."""
    return isinstance(got, str) and re.search(pattern, got, re.DOTALL) is not None


def one_of(patterns: list[Any], got: Any) -> bool:
    """At least one pattern fits."""
    return any(match(pattern, got) for pattern in patterns)


def unordered(patterns: list[Any], got: Any) -> bool:
    """A list whose items fit the patterns one to one, in any order (taken greedily)."""
    if not isinstance(got, list) or len(got) != len(patterns):
        return False
    rest = list(got)
    for pattern in patterns:
        hit = next((i for i, item in enumerate(rest) if match(pattern, item)), None)
        if hit is None:
            return False
        del rest[hit]
    return True


WILDCARDS: dict[str, Callable[[Any], bool]] = {
    "${ANY}": lambda got: True,
    "${INT}": lambda got: isinstance(got, int) and not isinstance(got, bool),
    "${STR}": lambda got: isinstance(got, str),
    "${UUID}": lambda got: isinstance(got, str) and UUID.match(got) is not None,
}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$subset": subset,
    "$contains": contains,
    "$regex": regex,
    "$oneOf": one_of,
    "$unordered": unordered,
}
