"""Two transports in one process, for tests and for embedding a server without a socket.

Keeps to the same contract as a real connection: delivery comes through the loop and in order,
``send`` counts against the water marks until the other side has taken the message, and closing
delivers what was sent before.  Messages arrive as ``bytes``: they are not validated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from handrail.transport.base import CLOSE_INTERNAL, CLOSE_OK, Receiver, Transport
from handrail.transport.message_limits import HIGH_WATER, LOW_WATER
from handrail.transport.stream import CLOSE_TIMEOUT, printable

logger = logging.getLogger(__name__)


class MemoryTransport:
    """One end.  ``_inbox`` holds what the other end has sent and this one has not taken."""

    kind = "memory"

    def __init__(self, receiver: Receiver, peer: str, close_timeout: float) -> None:
        self.peer = peer
        self._receiver = receiver
        self._close_timeout = close_timeout
        self._loop = asyncio.get_running_loop()
        self._other: MemoryTransport
        self._inbox: deque[bytes | Callable[[], None]] = deque()
        self._unread = 0
        self._paused = False
        self._scheduled = False
        self._told_to_pause = False
        self._deadline: asyncio.TimerHandle | None = None
        self._closing = False  # by us: nothing is sent or delivered any more
        self._ended = False  # by the other end: the inbox holds the last messages
        self._lost = False
        self._why = ""

    # -- Transport ----------------------------------------------------------------------

    def send(self, *parts: bytes) -> None:
        if self._closing or self._ended or self._lost:
            return
        message = b"".join(parts)
        other = self._other
        other._inbox.append(message)
        other._unread += len(message)
        other._schedule()
        if other._unread > HIGH_WATER and not self._told_to_pause:
            self._told_to_pause = True
            self._tell("pause_writing")

    def begin(self) -> None:
        self._pieces: list[bytes] = []

    def piece(self, data: bytes, *, last: bool = False) -> None:
        self._pieces.append(data)
        if last:
            self.send(*self._pieces)

    @property
    def buffered(self) -> int:
        return 0 if self._lost else self._other._unread

    def gather(self, seconds: float = 0.0) -> None:
        """Do nothing: a message costs no system call."""

    def write_gathered(self) -> None:
        """Do nothing: nothing was gathered."""

    def confirm(self, received: Callable[[], None]) -> None:
        if not (self._closing or self._ended or self._lost):
            self._other._inbox.append(received)
            self._other._schedule()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._schedule()

    def close(self, code: int = CLOSE_OK, reason: str = "") -> None:
        if self._closing or self._lost:
            return
        self._closing = True
        self._why = self._why or f"closed by this side: {code} {printable(reason)}".rstrip()
        if not self._ended:
            other = self._other
            other._ended = True
            other._why = other._why or f"closed by the peer: {code} {printable(reason)}".rstrip()
            other._schedule()
            self._deadline = self._loop.call_later(self._close_timeout, self.abort)
        else:
            self._schedule()

    def abort(self) -> None:
        self._why = self._why or "dropped by this side"
        self._other._why = self._other._why or "the connection broke"
        self._lose()
        self._other._lose()

    # -- internals ----------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        while self._inbox and not (self._paused or self._closing or self._lost):
            message = self._inbox.popleft()
            if not isinstance(message, bytes):
                message()
                continue
            self._unread -= len(message)
            try:
                self._receiver.message(message)
            except Exception:  # the receiver's errors must not reach the loop
                logger.exception("the receiver of %s failed on a message", self.peer)
                self.close(CLOSE_INTERNAL, "internal error")
        self._other._room_again()
        # Everything was taken, or is not wanted any more: now both ends may go.
        if self._ended and (self._closing or not self._inbox):
            self._lose()
            self._other._lose()

    def _room_again(self) -> None:
        if self._told_to_pause and self._other._unread <= LOW_WATER:
            self._told_to_pause = False
            self._tell("resume_writing")

    def _tell(self, what: str) -> None:
        if self._closing or self._lost:
            return
        try:
            getattr(self._receiver, what)()
        except Exception:  # as in _deliver()
            logger.exception("the receiver of %s failed in %s()", self.peer, what)
            self.close(CLOSE_INTERNAL, "internal error")

    def _lose(self) -> None:
        if self._lost:
            return
        self._lost = True
        self._inbox.clear()
        self._unread = 0
        if self._deadline is not None:
            self._deadline.cancel()
        # As with a socket, never within close() or abort().
        self._loop.call_soon(self._disconnect)

    def _disconnect(self) -> None:
        try:
            self._receiver.disconnected(self._why)
        except Exception:  # as in _deliver()
            logger.exception("the receiver of %s failed in disconnected()", self.peer)


def memory_pair(
    receiver_a: Receiver, receiver_b: Receiver, *, close_timeout: float = CLOSE_TIMEOUT
) -> tuple[Transport, Transport]:
    """Connect two ends; both receivers are connected when this returns.

    ``close_timeout`` (seconds) is how long a close waits for the other end.  Raises RuntimeError
    without a running event loop.
    """
    a = MemoryTransport(receiver_a, "memory b", close_timeout)
    b = MemoryTransport(receiver_b, "memory a", close_timeout)
    a._other = b
    b._other = a
    for end in (a, b):
        end._receiver.connected(end)
    return a, b
