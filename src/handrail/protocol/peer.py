"""One end of a call stream: ids, pending calls, late and duplicate replies.  Pure.

Our calls get integers from 1.  A reply belongs to a pending call, or to a finished one (then it is
late or a duplicate, and dropped), or to none at all: then the peer is broken and the connection has
to end.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from handrail.errors import RemoteProtocolError
from handrail.protocol.envelope import ErrorResponse, RequestId, Response

T = TypeVar("T")


class Peer(Generic[T]):
    """The pending calls of one connection; ``T`` is what waits for a reply."""

    def __init__(self) -> None:
        self._issued = 0
        self._pending: dict[int, T] = {}

    @property
    def pending(self) -> int:
        """The unanswered calls of this side."""
        return len(self._pending)

    def call(self, waiter: T) -> int:
        """Register a new call and return its id."""
        self._issued += 1
        self._pending[self._issued] = waiter
        return self._issued

    def give_up(self, number: int) -> T | None:
        """Stop waiting; a reply that still comes is late."""
        return self._pending.pop(number, None)

    def reply(self, message: Response | ErrorResponse) -> T | None:
        """The waiter for this reply; None when it is late or a duplicate.

        Raises RemoteProtocolError when no such call was ever made.
        """
        if not self._was_issued(message.id):
            shown = repr(message.id)[:80]  # a string of the peer's, of any length
            raise RemoteProtocolError(f"a reply to {shown}, which was never asked")
        return self._pending.pop(message.id, None)  # type: ignore[arg-type]

    def abandon(self) -> list[T]:
        """Return all waiters: the connection is gone."""
        waiters = list(self._pending.values())
        self._pending.clear()
        return waiters

    def _was_issued(self, request_id: RequestId) -> bool:
        return type(request_id) is int and 1 <= request_id <= self._issued
