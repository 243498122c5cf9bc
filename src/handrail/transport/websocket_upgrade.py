"""The WebSocket opening handshake (RFC 6455, section 4) as pure functions over heads.

Both sides: accepting a request, requesting a WebSocket, checking the answer.  Whether a request is
a valid upgrade is decided by ``http_head.upgrade_problem``.
Extensions (compression) and subprotocols are never offered, never selected, never accepted.
"""

from __future__ import annotations

import base64
import hashlib

from handrail.transport.http_head import (
    HttpRequest,
    HttpResponse,
    ResponseHead,
    encode_head,
    has_token,
    status_line,
)

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
# Set by us: a caller's extra header of such a name would contradict the handshake.
_RESERVED = frozenset(
    {"host", "upgrade", "connection", "content-length", "transfer-encoding"}
    | {f"sec-websocket-{name}" for name in ("key", "version", "accept", "extensions", "protocol")}
)


def accept_value(key: str) -> str:
    """The value of Sec-WebSocket-Accept for that key."""
    digest = hashlib.sha1(key.encode("latin-1") + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")


def accept_head(request: HttpRequest) -> bytes:
    """The 101 for a request without upgrade_problem."""
    return encode_head(
        [
            status_line(101),
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept_value(request.header('sec-websocket-key') or '')}",
        ]
    )


def refusal(sentence: str) -> HttpResponse:
    """The answer to an upgrade_problem; it names the version, as RFC 6455 4.4 requires."""
    return HttpResponse(400, sentence.encode(), headers=(("Sec-WebSocket-Version", "13"),))


def make_key(random: bytes) -> str:
    """A Sec-WebSocket-Key from 16 random bytes."""
    return base64.b64encode(random).decode("ascii")


def request_head(host: str, target: str, key: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """A client's request.  Raises ValueError for a header that is ours or not one line."""
    lines = [
        f"GET {target} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    for name, value in headers:
        if name.lower() in _RESERVED:
            raise ValueError(f"the header {name} belongs to the handshake")
        lines.append(f"{name}: {value}")
    return encode_head(lines)


def response_problem(response: ResponseHead, key: str) -> str | None:
    """Why a 101 does not open a WebSocket to us, in one sentence; None when it does."""
    if not has_token(response.headers, "upgrade", "websocket"):
        return "its answer has no 'Upgrade: websocket'"
    if not has_token(response.headers, "connection", "upgrade"):
        return "its answer has no 'Connection: Upgrade'"
    if response.header("sec-websocket-accept") != accept_value(key):
        return "its Sec-WebSocket-Accept does not fit our key"
    if response.header("sec-websocket-extensions") or response.header("sec-websocket-protocol"):
        return "it selected an extension or a subprotocol that was not offered"
    return None
