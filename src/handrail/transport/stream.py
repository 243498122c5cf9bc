"""What every connection over a byte stream has in common, whatever its framing.

Keeps the promises of ``base`` that are easy to break: messages in order and none after
``pause_reading``, ``disconnected`` exactly once, and a ``close`` that flushes but ends in time if
the peer does not read.  Framing is left to the two subclasses, ``WebSocketConnection`` and
``LineConnection``.

How it works.  A subclass decodes by pulling: ``_next_message`` until it has none.  A receiver that
pauses stops the pulling, so the rest stays in the decoder.  Pausing is lazy: the socket is only
stopped when bytes are left over (a server that handles one request at a time would else pay two
epoll changes for each), and it is only started again when the decoder has run dry; else a receiver
that pauses after each message would let it grow by one read for each message taken.

States: OPEN -> CLOSING (we or the peer closed; nothing is delivered or sent any more) -> LOST.
Each is entered at most once.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

from handrail.transport.base import CLOSE_INTERNAL, CLOSE_OK, Receiver
from handrail.transport.message_limits import HIGH_WATER, LOW_WATER

logger = logging.getLogger(__name__)

OPEN = 0
CLOSING = 1
LOST = 2

#: How long a closing peer may make no progress, and how long closing may take in all.
CLOSE_TIMEOUT = 1.0
CLOSE_TOTAL = 10.0
#: What is gathered is written when it is more than this: a client can begin with it.
_GATHER_BYTES = 8 * 1024
#: Bytes of a read by asyncio.  It allocates as many each time, which beyond 128 KiB is a mapping of
#: its own: three system calls and a page fault for each small message.
_READ_BYTES = 64 * 1024
#: Interval for checking whether the kernel has taken everything, for ``confirm``.
_LOOK_SECONDS = 0.005


class StreamConnection(asyncio.Protocol, ABC):
    """One open connection over an asyncio transport; a ``Transport`` for its receiver."""

    kind = "stream"

    # fmt: off
    __slots__ = (
        "_buffered_before", "_close_before", "_close_timeout", "_gathered", "_gathered_size",
        "_gathers_until",
        "_held", "_joins", "_loop", "_on_lost",
        "_paused", "_pumping", "_receiver", "_state", "_stopped", "_timer", "_transport", "_why",
        "peer",
    )
    # fmt: on

    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.Transport
    _joins: bool

    def __init__(
        self,
        receiver: Receiver,
        peer: str,
        *,
        close_timeout: float = CLOSE_TIMEOUT,
        on_lost: Callable[[StreamConnection], None] | None = None,
    ) -> None:
        self.peer = peer
        self._receiver = receiver
        self._close_timeout = close_timeout
        self._on_lost = on_lost
        self._state = OPEN
        self._paused = False  # by the receiver
        self._stopped = False  # the socket, therefore
        self._pumping = False
        self._why = ""
        self._timer: asyncio.TimerHandle | None = None
        self._buffered_before = 0
        self._gathered: list[bytes] | None = None  # to be written together
        self._gathered_size = 0
        self._gathers_until: asyncio.TimerHandle | None = None
        self._held: list[tuple[bytes, ...]] | None = None  # sent during a message in pieces
        self._close_before = 0.0

    # -- for subclasses -----------------------------------------------------------------

    @abstractmethod
    def _next_message(self) -> str | bytes | bytearray | None:
        """The next complete message, None when there is none (any more)."""

    @abstractmethod
    def _backlog(self) -> int:
        """How many bytes were read and not examined."""

    def _ran_dry(self) -> None:
        """Called when the decoder needs more input."""

    # -- Transport ----------------------------------------------------------------------

    @abstractmethod
    def send(self, *parts: bytes) -> None: ...

    def begin(self) -> None:
        self._held = []

    def piece(self, data: bytes, *, last: bool = False) -> None:
        if self._state != OPEN:
            return
        self._write_piece(data, last)
        if last and self._held is not None:
            held, self._held = self._held, None
            for parts in held:
                self.send(*parts)

    @abstractmethod
    def _write_piece(self, data: bytes, last: bool) -> None: ...

    @property
    def buffered(self) -> int:
        if self._state == LOST:
            return 0
        size = self._transport.get_write_buffer_size() + self._gathered_size
        if self._held:
            size += sum(len(part) for parts in self._held for part in parts)
        return size

    def gather(self, seconds: float = 0.0) -> None:
        if self._gathered is None and self._state == OPEN:
            self._gathered = []
            if seconds:
                self._gathers_until = self._loop.call_later(seconds, self.write_gathered)
            else:
                self._loop.call_soon(self.write_gathered)

    def write_gathered(self) -> None:
        if self._gathers_until is not None:
            self._gathers_until.cancel()
            self._gathers_until = None
        gathered, self._gathered, self._gathered_size = self._gathered, None, 0
        if gathered and self._state != LOST:
            self._write_now(gathered)

    def confirm(self, received: Callable[[], None]) -> None:
        if self._state != OPEN:
            return
        if self.buffered:
            self._loop.call_later(_LOOK_SECONDS, self.confirm, received)
        else:
            self._loop.call_soon(received)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if not self._paused:
            return
        self._paused = False
        # Not at once: the receiver often resumes while it handles a message.
        if not self._pumping and self._state == OPEN:
            self._loop.call_soon(self._pump)

    @abstractmethod
    def close(self, code: int = CLOSE_OK, reason: str = "") -> None: ...

    def abort(self) -> None:
        if self._state != LOST:
            self._drop("dropped by this side")

    # -- asyncio.Protocol ---------------------------------------------------------------

    def open(self, transport: asyncio.Transport, rest: bytes = b"") -> None:
        """Take over a transport; ``rest`` is what was read and belongs to this connection."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        # asyncio's own writelines joins before 3.12 and forgets to pause the protocol in
        # early 3.12 and 3.13 (CVE-2024-12254); uvloop and our own transports do it right.
        self._joins = isinstance(self._loop, asyncio.BaseEventLoop) and not getattr(
            transport, "takes_parts", False
        )
        if self._joins and hasattr(transport, "max_size"):
            transport.max_size = _READ_BYTES
        transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        transport.set_protocol(self)
        try:
            self._receiver.connected(self)
        except Exception:  # the receiver's errors must not reach the loop
            logger.exception("the receiver of %s failed in connected()", self.peer)
            self.close(CLOSE_INTERNAL, "internal error")
        if rest:
            self.data_received(rest)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """For streams without a handshake, where only asyncio calls `open`."""
        self.open(cast("asyncio.Transport", transport))  # uvloop's do not inherit from it

    def pause_writing(self) -> None:
        self._tell(self._receiver.pause_writing)

    def resume_writing(self) -> None:
        self._tell(self._receiver.resume_writing)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state == LOST:
            return
        self._state = LOST
        self._stop_timer()
        if not self._why:
            self._why = f"the connection broke: {exc}" if exc else "the peer closed the connection"
        if self._on_lost is not None:
            self._on_lost(self)
        try:
            self._receiver.disconnected(self._why)
        except Exception:  # as in open()
            logger.exception("the receiver of %s failed in disconnected()", self.peer)

    # -- internals ----------------------------------------------------------------------

    def _fed(self) -> None:
        """Called by a subclass after it has fed its decoder."""
        if not self._paused:
            self._pump()
        if self._paused and not self._stopped and self._backlog() and self._state == OPEN:
            self._stopped = True
            self._transport.pause_reading()

    def _pump(self) -> None:
        """Deliver what is complete, until the decoder is dry or the receiver pauses."""
        if self._pumping:
            return
        self._pumping = True
        receive = self._receiver.message
        several = gathers = False
        try:
            while self._state == OPEN and not self._paused:
                data = self._next_message()
                if data is None:
                    break
                if several and self._gathered is None:
                    # Answers to messages that came together are written together.
                    self._gathered = []
                    gathers = True
                several = True
                try:
                    receive(data)
                except Exception:  # as in open()
                    logger.exception("the receiver of %s failed on a message", self.peer)
                    self.close(CLOSE_INTERNAL, "internal error")
            else:
                return
        finally:
            self._pumping = False
            if gathers:
                self.write_gathered()
        self._start_reading()
        self._ran_dry()

    def _start_reading(self) -> None:
        if self._stopped:
            self._stopped = False
            self._transport.resume_reading()

    def _write(self, parts: tuple[bytes, ...]) -> None:
        gathered = self._gathered
        if gathered is None:
            self._write_now(parts)
            return
        gathered += parts
        for part in parts:
            self._gathered_size += len(part)
        if self._gathered_size > _GATHER_BYTES:
            self._gathered, self._gathered_size = [], 0
            self._write_now(gathered)

    def _write_now(self, parts: Sequence[bytes]) -> None:
        if self._joins:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def _tell(self, callback: Callable[[], None]) -> None:
        if self._state != OPEN:
            return
        try:
            callback()
        except Exception:  # as in open()
            logger.exception("the receiver of %s failed in a callback", self.peer)
            self.close(CLOSE_INTERNAL, "internal error")

    def _start_closing(self, why: str) -> None:
        """Enter CLOSING; a period without progress, or the total time, drops the peer."""
        self._state = CLOSING
        self._why = self._why or why
        self._stop_timer()
        self.write_gathered()
        self._close_before = self._loop.time() + max(CLOSE_TOTAL, self._close_timeout)
        self._buffered_before = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._close_timeout, self._check_closing)
        # Paused or not, the peer's close has to be read.
        self._start_reading()

    def _check_closing(self) -> None:
        buffered = self._transport.get_write_buffer_size()
        if buffered >= self._buffered_before or self._loop.time() >= self._close_before:
            self._drop(self._why)
            return
        self._buffered_before = buffered
        self._timer = self._loop.call_later(self._close_timeout, self._check_closing)

    def _drop(self, why: str) -> None:
        self._state = max(self._state, CLOSING)
        self._why = self._why or why
        self._stop_timer()
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def printable(text: str) -> str:
    """A peer's text for a log line: no control characters, limited length."""
    if len(text) > 200:
        text = text[:200] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def end_output(transport: asyncio.Transport) -> None:
    """Half-close if possible: the peer reads to the end while we still read."""
    if transport.can_write_eof():
        try:
            transport.write_eof()
        except OSError:  # reset by the peer meanwhile; connection_lost will follow
            pass
