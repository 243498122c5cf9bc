"""HTTP/1.1 heads as a pure machine: what a listener reads and answers before (or instead of)
a WebSocket.

Owns the limits and the strictness of request heads, and the form of our short answers.  One
request a connection, no bodies read, no keep-alive.  Answering an upgrade is in ``upgrade``.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

HEAD_LIMIT = 16 * 1024
HEADER_COUNT = 100

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"[!-~]+")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?")

Headers = tuple[tuple[str, str], ...]


class HeadError(Exception):
    """A head that cannot be accepted; ``status`` and the sentence are the answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request without its body.  Names in ``headers`` are lower-case, duplicates are kept."""

    method: str
    target: str
    path: str
    query: str
    headers: Headers
    version: str = "HTTP/1.1"

    def header(self, name: str) -> str | None:
        """The first value of that name in any case, None when absent."""
        return find_header(self.headers, name)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole answer; the connection ends after it."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()

    def encode(self, head_only: bool = False) -> bytes:
        """The bytes to send.  A HEAD request gets the same head and no body."""
        lines = [status_line(self.status), "Connection: close"]
        if self.body:
            lines.append(f"Content-Type: {self.content_type}")
        lines.append(f"Content-Length: {len(self.body)}")
        lines.extend(f"{name}: {value}" for name, value in self.headers)
        head = encode_head(lines)
        return head if head_only else head + self.body


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What a server answered, without its body; for the connecting side."""

    status: int
    headers: Headers

    def header(self, name: str) -> str | None:
        return find_header(self.headers, name)


class HeadReader:
    """Collects one head from reads of any size, and keeps what follows it."""

    __slots__ = ("_buf", "_limit", "rest")

    def __init__(self, limit: int = HEAD_LIMIT) -> None:
        self._buf = bytearray()
        self._limit = limit
        #: Bytes after the head, once it is complete.
        self.rest = b""

    @property
    def started(self) -> bool:
        return bool(self._buf)

    def feed(self, data: bytes) -> bytes | None:
        """The head without its closing blank line, None while it is incomplete."""
        start = max(0, len(self._buf) - 3)
        self._buf += data
        end = self._buf.find(b"\r\n\r\n", start)
        if _BARE_LF.search(self._buf, start, end if end >= 0 else len(self._buf)):
            raise HeadError(400, "lines of an HTTP head end with CR LF")
        if (end + 4 if end >= 0 else len(self._buf)) > self._limit:
            raise HeadError(431, f"an HTTP head holds at most {self._limit} bytes")
        if end < 0:
            return None
        head = bytes(self._buf[:end])
        self.rest = bytes(self._buf[end + 4 :])
        self._buf = bytearray()
        return head


def parse_request(head: bytes) -> HttpRequest:
    """A request from its head; raises HeadError with a 4xx or 5xx."""
    first, headers = split(head)
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise HeadError(400, "the request line is malformed")
    method, target, version = (part.decode("latin-1") for part in parts)
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise HeadError(505, "only HTTP/1.1 is spoken here")
    path, _, query = _origin_form(target).partition("?")
    return HttpRequest(method, target, path, query, headers, version)


def parse_response(head: bytes, most: int = HEADER_COUNT) -> ResponseHead:
    """Parse a response head; raises HeadError, in which the status then means nothing."""
    first, headers = split(head, most)
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise HeadError(400, "the answer does not begin with an HTTP status line")
    return ResponseHead(int(match[1]), headers)


def upgrade_problem(request: HttpRequest) -> str | None:
    """Why the request is no valid upgrade, in one sentence; None when it is one."""
    if request.method != "GET" or request.version != "HTTP/1.1":
        return "a WebSocket is opened with GET over HTTP/1.1"
    if not has_token(request.headers, "upgrade", "websocket"):
        return "this address speaks WebSocket: an 'Upgrade: websocket' header is needed"
    if not has_token(request.headers, "connection", "upgrade"):
        return "a 'Connection: Upgrade' header is needed"
    if _all(request, "sec-websocket-version") != ["13"]:
        return "only WebSocket version 13 is spoken here"
    keys = _all(request, "sec-websocket-key")
    if len(keys) != 1 or not _valid_key(keys[0]):
        return "one Sec-WebSocket-Key of 16 bytes in base64 is needed"
    return None


def find_header(headers: Headers, name: str) -> str | None:
    name = name.lower()
    for key, value in headers:
        if key == name:
            return value
    return None


def has_token(headers: Headers, name: str, token: str) -> bool:
    """Whether any header of that name lists the token among its comma-separated values."""
    return any(
        part.strip().lower() == token
        for key, value in headers
        if key == name
        for part in value.split(",")
    )


def encode_head(lines: list[str]) -> bytes:
    """Join lines to a head.  A line break in one would allow header injection."""
    for line in lines:
        if not _VALUE.fullmatch(line.encode("latin-1")):
            raise ValueError("a header must be one line of Latin-1 text")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def status_line(status: int) -> str:
    if status == 101:
        return "HTTP/1.1 101 Switching Protocols"
    from http import HTTPStatus  # 0.6 ms that the first WebSocket does not wait for

    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Status"
    return f"HTTP/1.1 {status} {phrase}"


def _origin_form(target: str) -> str:
    # RFC 9112, 3.2.2: a server must also accept the absolute form, though only proxies get it.
    scheme, sep, rest = target.partition("://")
    if sep and scheme.lower() in ("http", "https", "ws", "wss"):
        cut = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
        rest = rest[cut:]
        return rest if rest.startswith("/") else "/" + rest
    return target


def split(head: bytes, most: int = HEADER_COUNT) -> tuple[bytes, Headers]:
    """The first line and the headers of a head, at most so many; raises HeadError."""
    first, *lines = head.split(b"\r\n")
    if len(lines) > most:
        raise HeadError(431, f"an HTTP head holds at most {most} headers")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        # Also refuses folded lines and spaces before the colon: two parsers that disagree
        # about these are how requests get smuggled.
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HeadError(400, "a header line is malformed")
        headers.append((name.decode("ascii").lower(), value.strip(b" \t").decode("latin-1")))
    return first, tuple(headers)


def _all(request: HttpRequest, name: str) -> list[str]:
    return [value for key, value in request.headers if key == name]


def _valid_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        return False
