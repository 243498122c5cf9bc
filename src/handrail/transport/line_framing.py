"""One message a line: the framing of stdio and of plain Unix sockets.

``LineDecoder`` is pure; ``LineConnection`` puts it on a byte stream.  A line ends with LF; a CR
before it is dropped; blank lines are skipped; invalid UTF-8 and overlong lines end the connection,
since what follows may not be a message.  What is sent must hold no LF: compact JSON does not, and
looking for one would cost a pass over every message.
"""

from __future__ import annotations

from collections.abc import Callable

from handrail.errors import RemoteProtocolError
from handrail.transport.base import CLOSE_OK, Receiver
from handrail.transport.message_deadline import MessageDeadline
from handrail.transport.receive_buffer import ReceiveBuffer
from handrail.transport.stream import CLOSE_TIMEOUT, OPEN, StreamConnection, printable


class LineError(RemoteProtocolError):
    """A line that cannot be accepted; the connection has to end."""


class LineDecoder(ReceiveBuffer):
    """Bytes in, lines out; pulled one at a time like ``FrameDecoder``.

    ``_buf[_pos:]`` has not been searched yet, ``_partial`` has been and holds no LF: each byte is
    searched once, however long the line and however small the reads.
    """

    __slots__ = ("_ended", "_limit", "_partial")

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._partial = bytearray()
        self._ended = False

    @property
    def under_way(self) -> bytearray | None:
        """The received part of an unfinished line: the same object until it ends."""
        return self._partial or None

    def end(self) -> None:
        """Mark the end of input: what is left is the last line."""
        self._ended = True

    def next_line(self) -> str | None:
        """The next line that is not blank, None when more input is needed.  Raises LineError."""
        while True:
            line = self._next_raw()
            if line is None:
                return None
            text = self._decode(line)
            if text and not text.isspace():
                return text

    def _next_raw(self) -> bytes | bytearray | None:
        buf = self._buf
        end = buf.find(b"\n", self._pos)
        if end < 0:
            self._partial += buf[self._pos :]
            self._buf = b""
            self._pos = 0
            # One more than the limit is allowed: it may turn out to be a CR.
            if len(self._partial) > self._limit + 1:
                raise self._too_long()
            if not self._ended or not self._partial:
                return None
            piece = b""
        else:
            piece = buf[self._pos : end]
            self._pos = end + 1
            if self._pos == len(buf):
                self._buf = b""
                self._pos = 0
            if not self._partial:
                return piece
        line = self._partial
        self._partial = bytearray()
        line += piece
        return line

    def _decode(self, line: bytes | bytearray) -> str:
        if line.endswith(b"\r"):
            line = line[:-1]
        if len(line) > self._limit:
            raise self._too_long()
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise LineError("a line is not UTF-8") from None

    def _too_long(self) -> LineError:
        return LineError(f"a line holds at most {self._limit} bytes")


class LineConnection(StreamConnection):
    """A connection whose messages are lines."""

    __slots__ = ("_deadline", "_decoder", "_due", "_ended")

    def __init__(
        self,
        receiver: Receiver,
        peer: str,
        *,
        limit: int,
        close_timeout: float = CLOSE_TIMEOUT,
        on_lost: Callable[[StreamConnection], None] | None = None,
        message_seconds: float | None = None,
    ) -> None:
        super().__init__(receiver, peer, close_timeout=close_timeout, on_lost=on_lost)
        self._decoder = LineDecoder(limit)
        self._ended = False
        self._deadline = None if message_seconds is None else MessageDeadline(message_seconds)
        self._due = 0.0

    def send(self, *parts: bytes) -> None:
        if self._state != OPEN:
            return
        if self._held is not None:
            self._held.append(parts)
        else:
            self._write((*parts, b"\n"))

    def _write_piece(self, data: bytes, last: bool) -> None:
        self._write((data, b"\n") if last else (data,))

    def close(self, code: int = CLOSE_OK, reason: str = "") -> None:
        if self._state == OPEN:
            self._finish(f"closed by this side: {code} {printable(reason)}".rstrip())

    def data_received(self, data: bytes) -> None:
        if self._state == OPEN:
            self._decoder.feed(data)
            self._fed()

    def eof_received(self) -> bool:
        if self._state != OPEN:
            return False
        self._ended = True
        self._stopped = False  # there is nothing left to read
        self._decoder.end()
        if not self._paused:
            self._pump()
        return True  # _finish() closes once all is delivered

    def _next_message(self) -> str | None:
        try:
            return self._decoder.next_line()
        except LineError as error:
            self._finish(f"the peer broke the protocol: {error}")
            return None

    def _backlog(self) -> int:
        return self._decoder.backlog

    def _ran_dry(self) -> None:
        if self._ended and self._state == OPEN:
            self._finish("end of input")
        elif self._deadline is not None and self._timer is None and self._decoder.under_way:
            self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        """Check the deadline of the unfinished line, and drop the peer when it has passed."""
        self._timer = None
        deadline = self._deadline
        if deadline is None or self._state != OPEN:
            return
        now = self._loop.time()
        line = self._decoder.under_way
        late = max(now - self._due, 0.0) if self._due else 0.0
        if deadline.passed(line, now, reading=not self._paused, stood_still=late):
            self._drop(str(deadline))
        elif line is None:
            self._due = 0.0
        else:
            self._due = now + deadline.seconds / 2
            self._timer = self._loop.call_at(self._due, self._look_at_the_clock)

    def _finish(self, why: str) -> None:
        """Flush what is queued, then close; the receiver is told when that is done."""
        self._start_closing(why)
        self._transport.close()
