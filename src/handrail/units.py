"""Durations (``5m``, ``1.5h``), sizes (``2GiB``, ``500MB``, ``64k``) and counts as text."""

from __future__ import annotations

import math

from handrail.errors import UsageError

_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
#: ``k`` and ``KiB`` are 1024 bytes, ``kB`` is 1000, and so on.
_BYTES = {"": 1, "b": 1} | {
    letter + end: base ** (power + 1)
    for power, letter in enumerate("kmgtp")
    for end, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def parse_duration(text: str) -> float:
    """Seconds; a number without a unit is seconds.  Raises UsageError."""
    found = _parsed(text, _SECONDS)
    if found is None:
        raise UsageError(f"{text!r} is no duration; write one like 90s, 5m, 1.5h or 250ms")
    return found


def parse_size(text: str) -> int:
    """Bytes; a number without a unit is bytes.  Raises UsageError."""
    found = _parsed(text, _BYTES)
    if found is None or found != int(found):
        raise UsageError(f"{text!r} is no size; write one like 2GiB, 500MB or 64k")
    return int(found)


def counted(number: int, what: str) -> str:
    """A number of things, such as ``1 task`` and ``2 tasks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _parsed(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    text = text.strip() if text.isascii() else ""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    factor = units.get(text[len(number) :].strip().lower())
    if factor is None or not number or not number.replace(".", "", 1).isdecimal():
        return None
    whole = int(number) if "." not in number else float(number)  # no rounding of large numbers
    value = whole * factor
    return value if math.isfinite(value) else None
