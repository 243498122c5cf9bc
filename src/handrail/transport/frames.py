"""WebSocket frames (RFC 6455) as a pure machine: bytes in, messages out, and back.

Owns every rule about frames and messages: masks, fragments, control frames, limits, UTF-8.
No sockets, no clock, no randomness; when to send what is left to ``websocket_connection``.

How it works.  ``feed`` takes what one read returned, ``next_event`` is then called until it returns
None.  It returns one event at a time on purpose: a caller that stops (back-pressure) leaves the
rest here, in order.  Three fields can hold bytes:

  _buf[_pos:]   read and not examined: whole frames, or the start of a header
  _message      the unmasked beginning of a message that spans frames or reads
  _need         how many bytes of the current data frame are still to come

A frame that is complete in one read (nearly all are) never touches ``_message``.  Checks run in the
order in which the bytes arrive, so the outcome does not depend on how the input was cut, and a
length is checked when it is announced: nothing is allocated for it in advance.
"""

from __future__ import annotations

from dataclasses import dataclass

from handrail.errors import RemoteProtocolError
from handrail.transport.base import CLOSE_INVALID_TEXT, CLOSE_PROTOCOL_ERROR, CLOSE_TOO_BIG
from handrail.transport.masking import apply_mask
from handrail.transport.message_limits import FRAMES_OF_A_MESSAGE, MESSAGE_LIMIT
from handrail.transport.receive_buffer import ReceiveBuffer

CONTINUATION = 0x0
TEXT = 0x1
BINARY = 0x2
CLOSE = 0x8
PING = 0x9
PONG = 0xA

#: What a close frame without a code means; never sent (RFC 6455, 7.4.1).
NO_STATUS = 1005

_FIN = 0x80
_MASKED = 0x80


class FrameError(RemoteProtocolError):
    """The peer broke the framing; ``code`` is the close code to answer with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Ping:
    payload: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    payload: bytes


@dataclass(frozen=True, slots=True)
class Close:
    code: int
    reason: str


#: Large text is passed on as bytes if it is ASCII: making a ``str`` of it is a copy.
LARGE_TEXT = 64 * 1024
#: ``str`` is a text message; bytes are a binary or a large one, which the reader treats alike.
Event = str | bytes | bytearray | Ping | Pong | Close


class FrameDecoder(ReceiveBuffer):
    """The receiving half of one connection; ``masked`` is True if the peer is a client."""

    __slots__ = ("_done", "_fin", "_limit", "_mask", "_mask_bit", "_message", "_need", "_opcode")

    def __init__(self, *, masked: bool, limit: int = MESSAGE_LIMIT) -> None:
        super().__init__()
        self._mask_bit = _MASKED if masked else 0
        self._limit = limit
        self._message = bytearray()
        self._opcode = CONTINUATION  # of the current message; CONTINUATION when there is none
        self._need = 0
        self._fin = False
        self._mask = b""
        self._done = False

    @property
    def under_way(self) -> bytearray | None:
        """The received part of an unfinished message: the same object until it ends."""
        return None if self._opcode == CONTINUATION else self._message

    def next_event(self) -> Event | None:
        """The next message or control frame, None when more bytes are needed.

        Raises FrameError; the decoder is unusable after that, and after a Close.
        """
        while True:
            if self._need:
                self._continue_payload()
                if self._need:
                    return None
                if self._fin:
                    return self._finish_message()
            if self._done:
                self._buf = b""
                self._pos = 0
            buf = self._buf
            pos = self._pos
            have = len(buf)
            if have - pos < 2:
                self._keep_tail()
                return None
            first = buf[pos]
            second = buf[pos + 1]
            opcode = first & 0x0F
            length = second & 0x7F
            if (
                opcode > BINARY
                or first & 0x70
                or second & _MASKED != self._mask_bit
                or (opcode == CONTINUATION) != (self._opcode != CONTINUATION)
            ):
                self._check_unusual(first, second)
            pos += 2
            if length > 125:
                width = 2 if length == 126 else 8
                if have - pos < width:
                    self._keep_tail()
                    return None
                length = int.from_bytes(buf[pos : pos + width], "big")
                pos += width
            if length + len(self._message) > self._limit and opcode <= BINARY:
                self._check_length(length)
            mask = b""
            if self._mask_bit:
                mask = buf[pos : pos + 4]
                if len(mask) < 4:
                    self._keep_tail()
                    return None
                pos += 4
            end = pos + length
            if opcode > BINARY:
                if end > have:
                    self._keep_tail()
                    return None
                payload = apply_mask(buf[pos:end], mask) if mask else buf[pos:end]
                self._consume(end)
                return self._control(opcode, payload)
            if end <= have and first & _FIN and opcode != CONTINUATION:
                payload = apply_mask(buf[pos:end], mask) if mask else buf[pos:end]
                self._consume(end)
                return _as_text(payload) if opcode == TEXT else payload
            if opcode != CONTINUATION:
                self._opcode = opcode
            self._pos = pos
            self._need = length
            self._fin = bool(first & _FIN)
            self._mask = mask
            if not length and self._fin:
                return self._finish_message()

    def _consume(self, end: int) -> None:
        # An idle connection must not keep its last read alive.
        if end == len(self._buf):
            self._buf = b""
            self._pos = 0
        else:
            self._pos = end

    def _keep_tail(self) -> None:
        # At most a header and a control frame: copied so that a large read is freed.
        if self._pos:
            self._buf = self._buf[self._pos :]
            self._pos = 0

    def _continue_payload(self) -> None:
        """Move the received part of the current data frame into the message, unmasked."""
        pos = self._pos
        piece = self._buf[pos : pos + self._need]
        size = len(piece)
        self._consume(pos + size)
        self._need -= size
        mask = self._mask
        if mask:
            # A bytearray, not a list of pieces: a peer that sends byte by byte would make
            # the list cost fifty times the message.
            self._message += apply_mask(piece, mask)
            turn = size & 3
            self._mask = mask[turn:] + mask[:turn]
        else:
            self._message += piece

    def _finish_message(self) -> str | bytearray:
        opcode, self._opcode = self._opcode, CONTINUATION
        message, self._message = self._message, bytearray()
        if opcode == TEXT and not (len(message) > LARGE_TEXT and message.isascii()):
            return _as_text(message)
        return message

    def _control(self, opcode: int, payload: bytes) -> Event:
        if opcode == PING:
            return Ping(payload)
        if opcode == PONG:
            return Pong(payload)
        self._done = True
        return _parse_close(payload)

    def _check_unusual(self, first: int, second: int) -> None:
        """Raise for what the first two bytes forbid; a valid control frame passes."""
        opcode = first & 0x0F
        if first & 0x70:
            raise _violation("a reserved bit is set and no extension was agreed on")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise _violation(f"opcode {opcode} is reserved")
        if second & _MASKED != self._mask_bit:
            raise _violation(
                "a client must mask its frames" if self._mask_bit else "a server must not mask"
            )
        if opcode > BINARY:
            if not first & _FIN:
                raise _violation("a control frame must not be fragmented")
            if second & 0x7F > 125:
                raise _violation("a control frame holds at most 125 bytes")
        elif opcode == CONTINUATION:
            raise _violation("a continuation without a beginning")
        else:
            raise _violation("a new message inside a fragmented one")

    def _check_length(self, length: int) -> None:
        """Raise for a frame that is too long, or makes its message so."""
        if length >> 63:
            raise _violation("a frame length has its top bit set")
        most = FRAMES_OF_A_MESSAGE * self._limit
        if length > self._limit or length + len(self._message) > most:
            raise FrameError(
                CLOSE_TOO_BIG,
                f"a frame holds at most {self._limit} bytes, and a message in several {most}",
            )


def frame_header(opcode: int, length: int) -> bytes:
    """The header of an unmasked, unfragmented frame: what a server sends."""
    if length < 126:
        return bytes((_FIN | opcode, length))
    if length < 65536:
        return bytes((_FIN | opcode, 126, length >> 8, length & 0xFF))
    return bytes((_FIN | opcode, 127)) + length.to_bytes(8, "big")


def unfinished(header: bytes) -> bytes:
    """Clear the FIN bit of a header: more frames of the message follow."""
    return bytes((header[0] & ~_FIN,)) + header[1:]


def masked_frame(opcode: int, payload: bytes, mask: bytes) -> tuple[bytes, bytes]:
    """Header and body of a client's frame; ``mask`` is four fresh random bytes."""
    header = frame_header(opcode, len(payload))
    head = bytes((header[0], header[1] | _MASKED)) + header[2:] + mask
    return head, apply_mask(payload, mask)


def close_payload(code: int, reason: str = "") -> bytes:
    """The payload of a close frame; the reason is cut to what a control frame can hold."""
    if code == NO_STATUS:
        return b""
    text = reason.encode("utf-8", "replace")
    if len(text) > 123:
        text = text[:123].decode("utf-8", "ignore").encode()
    return code.to_bytes(2, "big") + text


def _parse_close(payload: bytes) -> Close:
    if not payload:
        return Close(NO_STATUS, "")
    code = int.from_bytes(payload[:2], "big")
    # 1004-1006 and 1015 are never sent, 1016-2999 are reserved for the RFC's successors.
    if len(payload) < 2 or not (1000 <= code < 1015 or 3000 <= code < 5000) or 1004 <= code <= 1006:
        raise _violation("a close frame with an invalid code")
    try:
        return Close(code, payload[2:].decode())
    except UnicodeDecodeError:
        raise _violation("a close frame whose reason is not UTF-8") from None


def _as_text(payload: bytes | bytearray) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise FrameError(CLOSE_INVALID_TEXT, "a text message that is not UTF-8") from None


def _violation(reason: str) -> FrameError:
    return FrameError(CLOSE_PROTOCOL_ERROR, reason)
