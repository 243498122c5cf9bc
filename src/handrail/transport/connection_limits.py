"""Limits of one listener: how many peers it has at once, and which are dropped beyond that.

Two rules:

  Connections: beyond the cap an upgrade is answered 503.  It is checked when the request is
  complete, so a health check still gets its answer on a full server.

  Unfinished handshakes: beyond the cap the oldest ones are answered 503 and closed.  Not the
  newest: 64 silent sockets would lock every client out for the whole deadline.  Each has a
  short time first: the loop accepts a burst of honest clients before it reads from the first of
  them.  At a multiple of the cap the oldest are dropped at once, so that time cannot be used to
  fill memory.

Peers that have their answer and only have to close do not count against the cap; beyond that
multiple the oldest of them are dropped too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from handrail.transport.message_limits import MESSAGE_LIMIT
from handrail.transport.stream import CLOSE_TIMEOUT, StreamConnection
from handrail.transport.websocket_connection import ConnectionLimits

logger = logging.getLogger(__name__)

#: How long unfinished handshakes may exceed their cap, and by which factor.
_BURST_TIME = 0.1
_BURST_FACTOR = 16
#: uvloop rounds timers to milliseconds, so they may fire that much too early.
_TICK = 0.002
_WARN_EVERY = 10.0

TOO_MANY_HANDSHAKES = "too many unfinished handshakes; try again later"


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """The bounds of one listener; times in seconds."""

    max_connections: int = 4096
    max_handshakes: int = 64
    handshake_timeout: float = 10.0
    message_limit: int = MESSAGE_LIMIT
    ping_interval: float = 10.0
    silence_timeout: float = 20.0
    close_timeout: float = CLOSE_TIMEOUT
    #: Time for one message beyond what its size needs (``message_deadline``).
    message_seconds: float | None = 20.0
    #: Called for each peer that is answered 401; returns the delay of that answer.
    refused: Callable[[str], float] | None = None

    def for_connection(self) -> ConnectionLimits:
        return ConnectionLimits(
            self.message_limit,
            self.ping_interval,
            self.silence_timeout,
            self.close_timeout,
            self.message_seconds,
        )


class Handshake(Protocol):
    """A peer that has not finished its handshake."""

    def refuse(self, sentence: str) -> None:
        """Answer 503 and close."""

    def drop(self) -> None:
        """Close without an answer."""


class RefusalLog:
    """Logs refusals at intervals: a line for each would fill the log."""

    def __init__(self) -> None:
        self._warned_at = float("-inf")
        self._unsaid = 0

    def warn(self, what: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_at < _WARN_EVERY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        logger.warning("refusing peers: %s%s", what, more)
        self._warned_at = now
        self._unsaid = 0


class Admission:
    """The peers of one listener: in handshake, open, and closing."""

    def __init__(self, limits: ListenLimits) -> None:
        self.limits = limits
        self.connection_limits = limits.for_connection()
        #: Oldest first, with the time of each.
        self._opening: dict[Handshake, float] = {}
        self._leaving: dict[Handshake, None] = {}  # oldest first
        self._dropped: set[Handshake] = set()
        self._open: set[StreamConnection] = set()
        self._thinning: asyncio.TimerHandle | None = None
        self._closed = False
        self.warn = RefusalLog().warn
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.limits.max_connections

    def enter(self, handshake: Handshake) -> str | None:
        """Register a new peer; a returned sentence says why not even a handshake is possible."""
        self._empty.clear()
        if self._closed:
            # The kernel accepted it before the socket was closed.
            self._leaving[handshake] = None
            return "this server is closing"
        loop = asyncio.get_running_loop()
        cap = self.limits.max_handshakes
        if len(self._opening) >= cap * _BURST_FACTOR:
            self.warn(f"more than {cap * _BURST_FACTOR} unfinished handshakes")
            next(iter(self._opening)).refuse(TOO_MANY_HANDSHAKES)
        self._opening[handshake] = loop.time()
        if len(self._opening) > cap and self._thinning is None:
            self._thinning = loop.call_later(_BURST_TIME, self._thin)
        return None

    def answered(self, handshake: Handshake) -> None:
        """Register that it got an answer and only has to close."""
        self._opening.pop(handshake, None)
        self._leaving[handshake] = None
        if len(self._leaving) > self.limits.max_handshakes * _BURST_FACTOR:
            oldest = next(iter(self._leaving))
            del self._leaving[oldest]
            self._dropped.add(oldest)
            oldest.drop()

    def opened(self, handshake: Handshake, connection: StreamConnection) -> None:
        """Register that the handshake has become a connection."""
        self._opening.pop(handshake, None)
        self._open.add(connection)

    def gone(self, handshake: Handshake) -> None:
        self._opening.pop(handshake, None)
        self._leaving.pop(handshake, None)
        self._dropped.discard(handshake)
        self._check_empty()

    def closed(self, connection: StreamConnection) -> None:
        self._open.discard(connection)
        self._check_empty()

    def close(self) -> None:
        """Accept no further peers and drop unfinished handshakes."""
        self._closed = True
        if self._thinning is not None:
            self._thinning.cancel()
            self._thinning = None
        for handshake in (*self._opening, *self._leaving):
            handshake.drop()

    def abort_connections(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def _thin(self) -> None:
        """Refuse the oldest beyond the cap, but none that has only just come."""
        self._thinning = None
        cap = self.limits.max_handshakes
        excess = len(self._opening) - cap
        if excess <= 0:
            return
        self.warn(f"more than {cap} unfinished handshakes")
        loop = asyncio.get_running_loop()
        now = loop.time()
        for handshake, came in list(self._opening.items())[:excess]:
            rest = came + _BURST_TIME - now
            if rest > _TICK:
                self._thinning = loop.call_later(rest, self._thin)
                return
            handshake.refuse(TOO_MANY_HANDSHAKES)

    def _check_empty(self) -> None:
        if not (self._opening or self._leaving or self._dropped or self._open):
            self._empty.set()
