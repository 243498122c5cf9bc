"""Heads of requests to the proxy, read strictly, and the heads that are sent on.

A head that two programs could read differently is refused, for the command chooses the bytes and an
origin or a second proxy reads them again: one parser decides and writes the new head from what it
understood.  `parse_request` gives a `ProxyRequest`, `forwarded` the head for the origin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from handrail.network import hosts
from handrail.network.decide import CONNECT, HTTP, Target
from handrail.network.hosts import BadHost, Host
from handrail.transport import http_head
from handrail.transport.http_head import HeadError, Headers

HEAD_LIMIT = 64 * 1024
FIELD_COUNT = 256
TARGET_LIMIT = 16 * 1024
#: More digits than any length has.
_LONGEST_NUMBER = 18

_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VISIBLE = re.compile(rb"[!-~]+")
_DIGITS = re.compile(r"[0-9]+")
_HTTP_PORT = 80
#: Fields of one connection, dropped on both ways besides those that ``Connection`` names.
_HOP_BY_HOP = frozenset(
    (
        "connection",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_FRAMING = frozenset(("content-length", "transfer-encoding"))


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request as the proxy understood it."""

    target: Target
    method: str
    #: Origin form; empty for CONNECT.
    path: str
    headers: Headers
    version: str
    #: Bytes of the body; None: chunked.
    length: int | None
    #: Whether the client wants to go on with this connection.
    keep: bool

    @property
    def has_body(self) -> bool:
        return self.length != 0


class ProxyHeadReader(http_head.HeadReader):
    """Collects one request head, with the limits of a proxy."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(HEAD_LIMIT)

    def feed(self, data: bytes) -> bytes | None:
        """The head without its closing blank line, None while it is incomplete."""
        if len(self._buf) < 2 and self._buf.strip(b"\r") == b"":
            # An empty line before a request is what some clients send behind a body.
            data = bytes(self._buf) + data
            self._buf.clear()
            while data.startswith(b"\r\n"):
                data = data[2:]
        if self._buf.find(b"\r\n") < 0:
            line, _, _ = (bytes(self._buf) + data).partition(b"\r\n")
            check_target_length(line)
        return super().feed(data)


def check_target_length(line: bytes) -> None:
    """Refuse a request line, perhaps an incomplete one, whose target is too long."""
    target = line.partition(b" ")[2].partition(b" ")[0]
    if len(target) > TARGET_LIMIT:
        raise HeadError(414, f"a request target holds at most {TARGET_LIMIT} bytes")


def parse_request(head: bytes) -> ProxyRequest:
    """A request from its head; raises HeadError with the status to answer."""
    first, headers = http_head.split(head, FIELD_COUNT)
    words = first.split(b" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or not _VISIBLE.fullmatch(words[1]):
        raise HeadError(400, "the request line is malformed")
    method, target, version = (word.decode("latin-1") for word in words)
    check_target_length(first)
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise HeadError(400, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    named = [value for name, value in headers if name == "host"]
    if len(named) > 1:
        raise HeadError(400, "a request has one Host field")
    length = body_length(headers, version)
    try:
        found, path = _target(method, target, named)
    except BadHost as error:
        raise HeadError(400, str(error)) from None
    if any(name == "x-unix-socket" for name, _ in headers):
        raise HeadError(501, "unix sockets unsupported")
    keep = wants_to_stay(headers, version)
    return ProxyRequest(found, method, path, headers, version, length, keep)


@lru_cache(256)  # a tool that opens many tunnels to a host says the same each time
def parse_connect(head: bytes) -> ProxyRequest | None:
    """A CONNECT from a whole head, which ends with an empty line; None: it is none, or wrong."""
    try:
        text = ProxyHeadReader().feed(head)
        request = None if text is None else parse_request(text)
    except HeadError:
        return None
    return request if request is not None and request.target.protocol == CONNECT else None


def _target(method: str, text: str, named: list[str]) -> tuple[Target, str]:
    if method == "CONNECT":
        name, port = hosts.split_authority(text)
        if port is None:
            raise BadHost("CONNECT names a host and a port")
        return Target(CONNECT, hosts.canonical(name), port, method), ""
    if "#" in text:
        raise BadHost("a request target has no fragment")
    if text.startswith("/"):
        if not named:
            raise BadHost("a request without a host in its target needs a Host field")
        host, port = _authority(named[0])
        return Target(HTTP, host, port, method), text
    scheme, colon, rest = text.partition("://")
    if not colon or scheme.lower() != "http":
        raise BadHost("only http: is spoken here; for https: use CONNECT")
    cut = min((place for place in map(rest.find, "/?") if place >= 0), default=len(rest))
    host, port = _authority(rest[:cut])
    if named and _authority(named[0]) != (host, port):
        raise BadHost("Host and the request target name different hosts")
    path = rest[cut:]
    if not path:
        path = "*" if method == "OPTIONS" else "/"
    elif path.startswith("?"):
        path = "/" + path
    return Target(HTTP, host, port, method), path


def _authority(text: str) -> tuple[Host, int]:
    name, port = hosts.split_authority(text)
    return hosts.canonical(name), _HTTP_PORT if port is None else port


def body_length(headers: Headers, version: str) -> int | None:
    """The length of a request's body, None for a chunked one; raises HeadError."""
    codings = _listed(headers, "transfer-encoding")
    lengths = _listed(headers, "content-length")
    if codings:
        if lengths or version != "HTTP/1.1" or [one.lower() for one in codings] != ["chunked"]:
            raise HeadError(400, "a body is chunked, or has a Content-Length, and nothing else")
        return None
    if not lengths:
        return 0
    if len(set(lengths)) > 1 or not is_length(lengths[0]):
        raise HeadError(400, "Content-Length is one number")
    return int(lengths[0])


def is_length(text: str) -> bool:
    """Whether a Content-Length can be read in one way only."""
    return bool(_DIGITS.fullmatch(text)) and len(text) <= _LONGEST_NUMBER


def wants_to_stay(headers: Headers, version: str) -> bool:
    """Whether the sender goes on with its connection after this message."""
    if http_head.has_token(headers, "connection", "close"):
        return False
    return version == "HTTP/1.1" or http_head.has_token(headers, "connection", "keep-alive")


def _listed(headers: Headers, name: str) -> list[str]:
    """The values of all fields of a name, an empty one included."""
    return [part.strip(" \t") for key, value in headers if key == name for part in value.split(",")]


def end_to_end(headers: Headers) -> Headers:
    """The fields that are sent on: none of this connection, of proxies, or of framing."""
    dropped = set(_HOP_BY_HOP | _FRAMING)
    dropped.update(one.lower() for one in _listed(headers, "connection"))
    return tuple(
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith("proxy-")
    )


def forwarded(request: ProxyRequest, *, absolute: bool = False, authorization: str = "") -> bytes:
    """The head for the origin, or in absolute form for another proxy."""
    target = request.target
    port = "" if target.port == _HTTP_PORT else f":{target.port}"
    authority = target.host.bracketed + port
    where = request.path
    if absolute:
        where = f"http://{authority}" + ("" if where == "*" else where)
    lines = [f"{request.method} {where} HTTP/1.1", f"host: {authority}"]
    if authorization:
        lines.append(f"proxy-authorization: {authorization}")
    kept = end_to_end(request.headers)
    lines += [f"{name}: {value}" for name, value in kept if name != "host"]
    if request.length is None:
        lines.append("transfer-encoding: chunked")
    elif request.length or any(name == "content-length" for name, _ in request.headers):
        lines.append(f"content-length: {request.length}")
    return http_head.encode_head(lines)
