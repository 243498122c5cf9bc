"""Bytes that were read and not examined yet: what the decoders of both framings stand on.  Pure."""

from __future__ import annotations


class ReceiveBuffer:
    """``_buf[_pos:]`` is what a decoder has still to examine."""

    __slots__ = ("_buf", "_pos")

    def __init__(self) -> None:
        self._buf = b""
        self._pos = 0

    def feed(self, data: bytes) -> None:
        """Add what was read.  The tail kept from before is short unless nothing is taken."""
        if self._buf:
            self._buf = self._buf[self._pos :] + data
            self._pos = 0
        else:
            self._buf = data

    @property
    def backlog(self) -> int:
        """How many bytes were fed and not examined."""
        return len(self._buf) - self._pos
