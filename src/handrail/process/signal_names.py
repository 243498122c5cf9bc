"""Signals by name, number or ``signal.Signals``."""

from __future__ import annotations

import signal

from handrail.errors import UsageError

_NUMBERS = {s.name.removeprefix("SIG").lower(): int(s) for s in signal.Signals}


def signal_number(name: str) -> int | None:
    """``interrupt`` of the wire, or any signal by its lower-case name (``term``, ``sigterm``)."""
    if name == "interrupt":
        return int(signal.SIGINT)
    return _NUMBERS.get(name.removeprefix("sig"))


def signal_name(given: object) -> str:
    """The name on the wire of ``TERM``, ``SIGTERM``, ``term``, 15, ``"15"`` or ``signal.SIGTERM``.

    SIGINT is ``interrupt``, which every server knows.  Raises UsageError for what is no signal.
    """
    if isinstance(given, str):
        number = int(given) if given.isdecimal() else signal_number(given.strip().lower())
    else:
        number = given if isinstance(given, int) and not isinstance(given, bool) else None
    if number == signal.SIGINT:
        return "interrupt"
    for name, value in _NUMBERS.items():
        if value == number:
            return name
    raise UsageError(
        f"there is no signal {given!r}; use a name such as 'term' or 'SIGTERM', a number, or"
        " signal.SIGTERM"
    )
