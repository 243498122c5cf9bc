"""Where a body ends: pure machines that take bytes of a stream and give those of the body.

`LengthBody`, `ChunkedBody` and `OpenBody` have one interface: ``feed`` takes bytes and gives what
belongs to the body, without framing; ``done`` says that it is complete, ``rest`` has what follows.
"""

from __future__ import annotations

import re

#: A line of chunk framing, extensions included; and trailers in all.
_LINE_LIMIT = 4096
_TRAILER_LIMIT = 64 * 1024
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")


class BadBody(ValueError):
    """The framing of a body is broken: where it ends cannot be told."""


class LengthBody:
    """A body of known length."""

    __slots__ = ("left", "rest")

    def __init__(self, length: int) -> None:
        self.left = length
        self.rest = b""

    @property
    def done(self) -> bool:
        return self.left == 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes; the part of them that is the body's."""
        body = data[: self.left]
        self.left -= len(body)
        self.rest = data[len(body) :]
        return body


class OpenBody:
    """A body that ends with the connection."""

    __slots__ = ("done", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; all of them are the body's."""
        return data


class ChunkedBody:
    """A chunked body; extensions and trailers are read and dropped."""

    __slots__ = ("_after", "_buffer", "_left", "_trailers", "done", "rest")

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        #: The line break behind a chunk is still to come.
        self._after = False
        self._trailers: int | None = None
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; the data of chunks among them.  Raises BadBody."""
        data = self._buffer + data
        at = 0
        body = []
        while not self.done:
            if self._left:
                piece = data[at : at + self._left]
                if not piece:
                    break
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._after = self._left == 0
                continue
            end = data.find(b"\n", at)
            if end < 0:
                if len(data) - at > _LINE_LIMIT:
                    raise BadBody("a line of chunk framing is too long")
                break
            if end == at or data[end - 1] != 13 or end - at > _LINE_LIMIT:
                raise BadBody("a line of chunk framing is malformed")
            self._line(data[at : end - 1])
            at = end + 1
        if self.done:
            self.rest, self._buffer = data[at:], b""
        else:
            self._buffer = data[at:]
        return b"".join(body)

    def _line(self, line: bytes) -> None:
        if self._after:
            if line:
                raise BadBody("a chunk is longer than its size")
            self._after = False
        elif self._trailers is not None:
            self._trailers += len(line)
            if not line:
                self.done = True
            elif self._trailers > _TRAILER_LIMIT or not _TRAILER.fullmatch(line):
                raise BadBody("a trailer is malformed")
        else:
            found = _SIZE.fullmatch(line)
            if found is None:
                raise BadBody("the size of a chunk is malformed")
            self._left = int(found[1], 16)
            if self._left == 0:
                self._trailers = 0


Body = LengthBody | ChunkedBody | OpenBody


def chunk(data: bytes) -> bytes:
    """Frame data as one chunk; empty data is left out, for it would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"
