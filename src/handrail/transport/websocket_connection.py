"""One open WebSocket, either side: frames to messages, liveness, and the closing handshake.

Decides when control frames are sent and what ends a connection; frames themselves are in
``frames``, opening is in ``websocket_handshake``.

Liveness.  One timer a connection, armed for the next ping or for the end of the silence limit,
whichever is first; a read only notes the time.  Any bytes count as life, since a peer in the middle
of a large frame cannot send anything else.  So does a write buffer that shrinks: a slow peer gets
our ping only after all that is queued before it.  While this side has paused reading, only a write
buffer that does not shrink counts against the peer.  The same timer checks how long a message takes
(``message_deadline``).  Time for which this whole process was stopped does not count at all: after
a SIGSTOP or a blocked loop the timers fire before the pongs that wait in the sockets are read.

Failing.  After a violation the close frame is sent, our direction is ended, and input is read and
discarded for a moment: closing a socket with unread input makes the kernel send a reset, and that
can overtake the close frame.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from handrail.transport.base import CLOSE_OK, Receiver
from handrail.transport.frames import (
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Close,
    FrameDecoder,
    FrameError,
    Ping,
    Pong,
    close_payload,
    frame_header,
    masked_frame,
    unfinished,
)
from handrail.transport.message_deadline import MessageDeadline
from handrail.transport.message_limits import HIGH_WATER, MESSAGE_LIMIT
from handrail.transport.stream import (
    CLOSE_TIMEOUT,
    CLOSING,
    OPEN,
    StreamConnection,
    end_output,
    printable,
)

#: Interval for checking whether a long message has ended.
_HELD_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one open WebSocket; times in seconds."""

    message_limit: int = MESSAGE_LIMIT
    ping_interval: float = 10.0
    silence_timeout: float = 20.0
    close_timeout: float = CLOSE_TIMEOUT
    #: Time for one message beyond what its size needs (``message_deadline``); None: any time.
    message_seconds: float | None = None


class WebSocketConnection(StreamConnection):
    kind = "websocket"

    __slots__ = (
        "_client",
        "_deadline",
        "_decoder",
        "_discards",
        "_due",
        "_heard_at",
        "_limits",
        "_marked",
        "_marks",
        "_next_ping",
        "_now",
        "_opcode",
    )

    def __init__(
        self,
        receiver: Receiver,
        peer: str,
        *,
        client: bool,
        limits: ConnectionLimits,
        on_lost: Callable[[StreamConnection], None] | None = None,
    ) -> None:
        super().__init__(receiver, peer, close_timeout=limits.close_timeout, on_lost=on_lost)
        self._client = client
        self._limits = limits
        self._decoder = FrameDecoder(masked=not client, limit=limits.message_limit)
        seconds = limits.message_seconds
        self._deadline = None if seconds is None else MessageDeadline(seconds)
        self._discards = False
        self._opcode = TEXT  # of the next fragment
        self._heard_at = 0.0
        self._next_ping = 0.0
        self._due = 0.0
        self._marked = 0  # count of pings sent by ``confirm``
        self._marks: deque[tuple[int, Callable[[], None]]] = deque()
        self._now = asyncio.get_running_loop().time

    def open(self, transport: asyncio.Transport, rest: bytes = b"") -> None:
        self._heard_at = now = self._now()
        self._next_ping = now + self._limits.ping_interval
        super().open(transport, rest)
        if self._state == OPEN:
            self._arm()

    # -- sending ------------------------------------------------------------------------

    def send(self, *parts: bytes) -> None:
        if self._state != OPEN:
            return
        if self._held is not None:
            self._held.append(parts)
            return
        if self._client:
            self._write(masked_frame(TEXT, b"".join(parts), os.urandom(4)))
            return
        size = 0
        for part in parts:
            size += len(part)
        self._write((frame_header(TEXT, size), *parts))

    def begin(self) -> None:
        super().begin()
        self._opcode = TEXT

    def _write_piece(self, data: bytes, last: bool) -> None:
        """One fragment of a message (RFC 6455, 5.4)."""
        if self._client:
            header, body = masked_frame(self._opcode, data, os.urandom(4))
        else:
            header, body = frame_header(self._opcode, len(data)), data
        if not last:
            header = unfinished(header)
        self._opcode = CONTINUATION
        self._write((header, body))

    def close(self, code: int = CLOSE_OK, reason: str = "") -> None:
        if self._state != OPEN:
            return
        self._send_control(CLOSE, close_payload(code, reason))
        self._start_closing(f"closed by this side: {code} {printable(reason)}".rstrip())
        self._await_close()

    def confirm(self, received: Callable[[], None]) -> None:
        """Send a ping: its pong comes after everything before it was read."""
        if self._state != OPEN:
            return
        if self._held is not None:
            # What is sent during a long message follows it; a ping would overtake that.
            self._loop.call_later(_HELD_SECONDS, self.confirm, received)
            return
        self._marked += 1
        self._marks.append((self._marked, received))
        self._send_control(PING, b"%d" % self._marked)

    def _confirmed(self, payload: bytes) -> None:
        # A peer may answer the last of several pings alone (RFC 6455, 5.5.3).
        if payload.isdigit() and len(payload) < 20:
            last = int(payload)
            while self._marks and self._marks[0][0] <= last:
                self._tell(self._marks.popleft()[1])

    def _send_control(self, opcode: int, payload: bytes) -> None:
        if self._client:
            self._write(masked_frame(opcode, payload, os.urandom(4)))
        else:
            self._write((frame_header(opcode, len(payload)), payload))

    # -- receiving ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._now()
        if self._discards:
            return
        self._decoder.feed(data)
        if self._state == OPEN:
            self._fed()
        else:
            self._await_close()

    def _next_message(self) -> str | bytes | bytearray | None:
        while True:
            try:
                event = self._decoder.next_event()
            except FrameError as error:
                self._fail(error)
                return None
            if event is None or isinstance(event, (str, bytes, bytearray)):
                return event
            if isinstance(event, Ping):
                # A peer that pings and never reads must not make us queue pongs without limit.
                if self._transport.get_write_buffer_size() <= HIGH_WATER:
                    self._send_control(PONG, event.payload)
            elif isinstance(event, Pong):
                if self._marks:
                    self._confirmed(event.payload)
            elif isinstance(event, Close):
                self._send_control(CLOSE, close_payload(event.code))
                self._start_closing(f"closed by the peer: {_described(event)}")
                self._transport.close()
                return None

    def _backlog(self) -> int:
        return self._decoder.backlog

    def _await_close(self) -> None:
        """After our close frame: look for the peer's, discard everything else."""
        while self._state == CLOSING and not self._discards:
            try:
                event = self._decoder.next_event()
            except FrameError:
                self._discard()
                return
            if event is None:
                return
            if isinstance(event, Close):
                self._transport.close()
                return

    def _fail(self, error: FrameError) -> None:
        self._send_control(CLOSE, close_payload(error.code, error.reason))
        self._start_closing(f"the peer broke the protocol: {error.reason}")
        self._discard()

    def _discard(self) -> None:
        self._discards = True
        self._decoder = FrameDecoder(masked=False)  # frees an unfinished message
        end_output(self._transport)

    def eof_received(self) -> bool:
        if self._state == OPEN:
            self._start_closing("the peer closed without a close frame")
        return False  # the transport flushes and closes; the timer bounds that

    # -- liveness -----------------------------------------------------------------------

    def resume_writing(self) -> None:
        self._heard_at = self._now()
        super().resume_writing()

    def _arm(self) -> None:
        self._due = due = min(self._next_ping, self._heard_at + self._limits.silence_timeout)
        self._timer = self._loop.call_later(max(due - self._now(), 0.001), self._tick)

    def _tick(self) -> None:
        now = self._now()
        deadline = self._deadline
        if deadline is not None and deadline.passed(
            self._decoder.under_way,
            now,
            reading=not self._paused,
            stood_still=max(now - self._due, 0.0),
        ):
            self._drop(str(deadline))
            return
        buffered = self._transport.get_write_buffer_size()
        if buffered < self._buffered_before or (self._paused and not buffered):
            self._heard_at = now
        else:
            self._heard_at = min(now, self._heard_at + max(now - self._due, 0.0))
        self._buffered_before = buffered
        silence = self._limits.silence_timeout
        # uvloop rounds timers to milliseconds, so they may fire that much too early.
        if now - self._heard_at >= silence - 0.002:
            self._drop(f"nothing came from the peer for {silence:g} s")
            return
        if now >= self._next_ping - 0.002:
            self._next_ping = now + self._limits.ping_interval
            if buffered <= HIGH_WATER:
                # Repeated if unanswered: a peer may omit a pong.
                again = bool(self._marks) and self._held is None
                self._send_control(PING, b"%d" % self._marked if again else b"")
        self._arm()


def _described(close: Close) -> str:
    return f"{close.code} {printable(close.reason)}".rstrip()
