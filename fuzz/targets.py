"""What is fuzzed: functions that take any bytes and raise only where there is a bug.

What a parser may raise on bad input is caught here; anything else, and every broken promise,
gets out.  Modules are imported inside the functions, so that one which does not import leaves
the others usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import guard
import network


class BrokenPromise(AssertionError):
    """A parser gave an answer that it promises not to give."""


def codec(data: bytes) -> None:
    """A message is decoded or called malformed."""
    from handrail.errors import RemoteProtocolError
    from handrail.protocol.codec import decode

    try:
        decode(data)
    except RemoteProtocolError:
        pass


def frames(data: bytes) -> None:
    """Frames give the same events however the bytes are cut."""
    if outcome_of_frames([data]) != outcome_of_frames(pieces(data)):
        raise BrokenPromise("the events depend on how the input was cut")


def outcome_of_frames(parts: list[bytes]) -> list[object]:
    """The events of a stream, and how it ended."""
    from handrail.transport.frames import FrameDecoder, FrameError

    decoder = FrameDecoder(masked=True)
    events: list[object] = []
    try:
        for part in parts:
            decoder.feed(part)
            while (event := decoder.next_event()) is not None:
                events.append(event)
    except FrameError as e:
        events.append((e.code, e.reason))
    return events


def http_head(data: bytes) -> None:
    """A head is taken or refused, and which does not depend on how the bytes are cut."""
    if outcome_of_head([data]) != outcome_of_head(pieces(data)):
        raise BrokenPromise("whether a head is taken depends on how the input was cut")
    response_of_head(data)


def outcome_of_head(parts: list[bytes]) -> object:
    """The request; None for one that is incomplete or refused."""
    from handrail.transport.http_head import HeadError, HeadReader, parse_request, upgrade_problem

    reader = HeadReader()
    try:
        for part in parts:
            head = reader.feed(part)
            if head is not None:
                request = parse_request(head)
                return request, upgrade_problem(request)
    except HeadError as e:
        if not 400 <= e.status < 600:
            raise BrokenPromise(f"a head is refused with status {e.status}") from e
    return None


def response_of_head(data: bytes) -> None:
    """The other side's head, as a client reads it."""
    from handrail.transport.http_head import HeadError, parse_response

    try:
        parse_response(data)
    except HeadError:
        pass


def path_uri(data: bytes) -> None:
    """A URI gives an absolute path without NUL, or is refused."""
    from handrail.protocol.path_uri import BadUri, NotNative, to_path

    try:
        path = to_path(data.decode("utf-8", "replace"))
    except (BadUri, NotNative):
        return
    if not path.startswith(b"/") or b"\0" in path:
        raise BrokenPromise(f"not a native absolute path: {path!r}")


def pieces(data: bytes) -> list[bytes]:
    """The same bytes in pieces of many lengths; the data itself decides which."""
    return list(cut(data))


def cut(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = 1 + data[at] % 7
        yield data[at : at + size]
        at += size


@dataclass(frozen=True)
class Target:
    """A function, and words its input is made of."""

    run: Callable[[bytes], None]
    tokens: tuple[bytes, ...]
    #: Seconds one input may take; where processes are started it depends on the machine.
    patience: float = 2.0
    #: What is said at the end besides the number of executions.
    report: Callable[[], str] | None = None


TARGETS = {
    "codec": Target(
        codec,
        (
            b'"id":',
            b'"method":',
            b'"params":',
            b'"result":',
            b'"error":',
            b'"code":',
            b'"trace":{"traceparent":"',
            b'"jsonrpc":"2.0",',
            b"{}",
            b"[]",
            b"[" * 130,
            b"null",
            b"true",
            b"-1",
            b"9223372036854775808",
            b"1e999",
            b"NaN",
            b'"\\ud800"',
            b'"\\u0000"',
            b"\xed\xa0\x80",
            b"\xef\xbb\xbf",
            b"\n",
        ),
    ),
    "frames": Target(
        frames,
        (
            b"\x81\x80\0\0\0\0",
            b"\x01\x80\0\0\0\0",
            b"\x80\x80\0\0\0\0",
            b"\x88\x82\0\0\0\0\x03\xe8",
            b"\x89\x80\0\0\0\0",
            b"\x8a\x80\0\0\0\0",
            b"\x81\xfe\0\x7e\0\0\0\0",
            b"\x82\xff\0\0\0\0\0\x01\0\0\0\0\0\0",
            b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"\xc1\x80\0\0\0\0",
            b"\xf0\x9f\x98\x80",
        ),
    ),
    "http_head": Target(
        http_head,
        (
            b"\r\n",
            b"\r\n\r\n",
            b"\n\n",
            b"GET / HTTP/1.1\r\n",
            b"HTTP/1.0",
            b"HTTP/2",
            b"Host: 127.0.0.1\r\n",
            b"Upgrade: websocket\r\n",
            b"Connection: keep-alive, Upgrade\r\n",
            b"Sec-WebSocket-Version: 13\r\n",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            b"Authorization: Bearer ",
            b"Origin: http://x\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"http://host/?q",
            b" folded",
            b":",
            b"\0",
        ),
    ),
    "path_uri": Target(
        path_uri,
        (
            b"file:",
            b"file://",
            b"file:///",
            b"FILE://localhost/",
            b"http://",
            b"//",
            b"/../",
            b"/./",
            b"%2e%2e",
            b"%2F",
            b"%00",
            b"%FF",
            b"%",
            b"\\",
            b"C:",
            b"C|",
            b"?",
            b"#",
            b"@",
            b"\t",
            b"\xc3\xa9",
        ),
    ),
    "proxy_head": Target(network.proxy_head, network.HEAD_TOKENS),
    "socks": Target(network.socks, network.SOCKS_TOKENS),
    "network_host": Target(network.host, network.HOST_TOKENS),
    "guard": Target(guard.guard, guard.TOKENS, patience=60.0, report=guard.report),
    "guard_grammar": Target(guard.guard_grammar, (), patience=60.0, report=guard.report),
}
