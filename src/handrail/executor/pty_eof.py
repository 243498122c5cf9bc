"""How often the end-of-file key must be typed at a terminal.  Pure.

The key does not mean "no more input": it hands over what was typed so far.  Only when that is
nothing does the program read an end.  So after an unfinished line the key is needed twice.
"""

from __future__ import annotations

#: Line feed, carriage return, which the terminal turns into one, and the end-of-file key itself.
_ENDS = (b"\n", b"\r", b"\x04")


class UnfinishedLine:
    """Tracks whether the terminal holds an unfinished line."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = False

    def typed(self, data: bytes) -> None:
        """Note what was written to the terminal."""
        if data:
            self._open = bytes(data[-1:]) not in _ENDS

    def ends(self) -> int:
        """How often to type the end-of-file key now; the line is empty afterwards."""
        times = 2 if self._open else 1
        self._open = False
        return times
