"""Results that are too large, or too frequent, to be built as one object and encoded."""

from __future__ import annotations

from collections.abc import Callable


class Parts:
    """A result that is already JSON, in pieces.  The transport has it when ``sent`` is called."""

    __slots__ = ("parts", "sent")

    def __init__(self, parts: list[bytes], sent: Callable[[], None] | None = None) -> None:
        self.parts = parts
        self.sent = sent


class Streamed:
    """A JSON result that is never in memory as a whole.

    ``piece`` is called in a thread until it returns nothing, between ``head`` and ``tail``;
    ``close`` once, in any case.
    """

    __slots__ = ("close", "head", "piece", "tail")

    def __init__(
        self, head: bytes, piece: Callable[[], bytes], tail: bytes, close: Callable[[], None]
    ) -> None:
        self.head = head
        self.piece = piece
        self.tail = tail
        self.close = close
