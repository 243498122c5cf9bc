"""Results that are too large, or too frequent, to be built as one object and encoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Later:
    """A result that a future brings; ``read`` makes it of that, or raises.

    For the most frequent request that waits: a task costs more than the rest of its answer.
    """

    __slots__ = ("future", "read")

    def __init__(
        self, future: asyncio.Future[Any], read: Callable[[asyncio.Future[Any]], Any]
    ) -> None:
        self.future = future
        self.read = read


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
