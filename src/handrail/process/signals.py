"""Signals by their names."""

from __future__ import annotations

import signal

_NUMBERS = {s.name.removeprefix("SIG").lower(): int(s) for s in signal.Signals}


def signal_number(name: str) -> int | None:
    """``interrupt`` of the wire, or any signal by its lower-case name (``term``, ``sigterm``)."""
    if name == "interrupt":
        return int(signal.SIGINT)
    return _NUMBERS.get(name.removeprefix("sig"))
