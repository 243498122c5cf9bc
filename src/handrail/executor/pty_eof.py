"""What was typed at a terminal since its line began.  Pure.

The end-of-file key does not mean "no more input": it hands over what was typed so far.  Only when
that is nothing does the program read an end.  So behind an unfinished line it takes the key twice.
"""

from __future__ import annotations

#: Line feed, the return key, which the terminal turns into one, and the end-of-file key itself.
_ENDS = (b"\n", b"\r", b"\x04")


class UnfinishedLine:
    """Whether something was typed that the program has not been given yet."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = False

    def typed(self, data: bytes) -> None:
        """This was written to the terminal."""
        if data:
            self._open = bytes(data[-1:]) not in _ENDS

    def ends(self) -> int:
        """How often the end-of-file key has to be typed now; the line is empty afterwards."""
        times = 2 if self._open else 1
        self._open = False
        return times
