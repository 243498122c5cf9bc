"""What is fuzzed of the managed network: heads, bodies, SOCKS, hosts and patterns."""

from __future__ import annotations

from collections.abc import Callable


class BrokenPromise(AssertionError):
    """A parser gave an answer that it promises not to give."""


def proxy_head(data: bytes) -> None:
    """A head is taken or refused however it is cut, and what is sent on reads the same again."""
    whole, cut = outcome_of_head([data]), outcome_of_head(list(_pieces(data)))
    if whole != cut:
        raise BrokenPromise("whether a head is taken depends on how the input was cut")
    chunked_body(data)


def outcome_of_head(parts: list[bytes]) -> object:
    """The request; None for one that is incomplete or refused."""
    from handrail.network.heads import ProxyHeadReader, forwarded, parse_request
    from handrail.transport.http_head import HeadError

    reader = ProxyHeadReader()
    try:
        for part in parts:
            head = reader.feed(part)
            if head is None:
                continue
            request = parse_request(head)
            _check_host(request.target.host.text)
            if request.path:
                _check_forwarded(request, forwarded(request), parse_request)
                _check_forwarded(request, forwarded(request, absolute=True), parse_request)
            return request
    except HeadError as error:
        if error.status not in (400, 414, 431, 501):
            raise BrokenPromise(f"a head is refused with status {error.status}") from error
    return None


def _check_forwarded(request: object, head: bytes, parse: Callable[[bytes], object]) -> None:
    """The origin must see one request to the same host, with the same body."""
    from handrail.transport.http_head import HeadError

    if head.startswith(b"OPTIONS * "):
        return  # about the origin itself: a form that only origins are sent
    try:
        again = parse(head.removesuffix(b"\r\n\r\n"))
    except HeadError as error:
        raise BrokenPromise(f"what is sent on would be refused: {error}") from error
    for name in ("target", "length"):
        if getattr(again, name) != getattr(request, name):
            raise BrokenPromise(f"what is sent on has another {name}")
    lowered = head.lower()
    if b"\r\nproxy-" in lowered or b"\r\nupgrade:" in lowered or lowered.count(b"\r\nhost:") != 1:
        raise BrokenPromise("a field is sent on that is not to be, or Host is not there once")


def chunked_body(data: bytes) -> None:
    """A chunked body gives the same bytes however it is cut."""
    if _outcome_of_body([data]) != _outcome_of_body(list(_pieces(data))):
        raise BrokenPromise("a chunked body depends on how the input was cut")


def _outcome_of_body(parts: list[bytes]) -> object:
    from handrail.network.bodies import BadBody, ChunkedBody

    body = ChunkedBody()
    got = b""
    try:
        for at, part in enumerate(parts):
            got += body.feed(part)
            if body.done:
                return got, body.rest + b"".join(parts[at + 1 :])
    except BadBody:
        return "bad"
    return got


def socks(data: bytes) -> None:
    """A handshake ends in the same way however it is cut, with a host in canonical form."""
    if _outcome_of_socks([data]) != _outcome_of_socks(list(_pieces(data))):
        raise BrokenPromise("the handshake depends on how the input was cut")


def _outcome_of_socks(parts: list[bytes]) -> object:
    from handrail.network.socks import SocksError, SocksReader

    reader = SocksReader()
    said = b""
    try:
        for at, part in enumerate(parts):
            answer, request = reader.feed(part)
            said += answer
            if request is not None:
                _check_host(request.host.text)
                rest = request.rest + b"".join(parts[at + 1 :])
                return said, request.host, request.port, rest
    except SocksError as error:
        return error.answer[:2]
    return said


def host(data: bytes) -> None:
    """A host has one canonical form; a pattern is read or refused, and never allows what it leaves.

    The first line is a host, the second a pattern.
    """
    from handrail.network.hosts import BadHost, canonical
    from handrail.network.patterns import BadPattern, PatternSet, parse

    first, _, second = data.decode("utf-8", "replace").partition("\n")
    try:
        found = canonical(first)
    except BadHost:
        found = canonical("a.ok.example")
    _check_host(found.text)
    try:
        pattern = parse(second)
    except BadPattern:
        return
    narrow = PatternSet([pattern], wide=False).find(found, 443)
    wide = PatternSet([pattern], wide=True).find(found, 443)
    if narrow is not None and wide is None:
        raise BrokenPromise("a pattern allows a host that it does not deny")
    if narrow is not None and found.address is not None and pattern.kind not in ("exact", "any"):
        raise BrokenPromise("a wildcard allows an address")


def _check_host(text: str) -> None:
    from handrail.network.hosts import canonical

    if canonical(text).text != text:
        raise BrokenPromise(f"not canonical: {text!r}")


def _pieces(data: bytes) -> list[bytes]:
    from targets import pieces

    return pieces(data)


HEAD_TOKENS = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b"GET http://ok.example/ HTTP/1.1\r\n",
    b"POST /x HTTP/1.0\r\n",
    b"CONNECT ok.example:443 HTTP/1.1\r\n",
    b"Host: ok.example\r\n",
    b"Content-Length: 4\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close, x-a\r\n",
    b"Proxy-Authorization: Basic x\r\n",
    b"Upgrade: websocket\r\n",
    b"x-unix-socket: /x\r\n",
    b"https://",
    b"http://u@",
    b"http://[::1]:80",
    b"#",
    b"\\",
    b"%2e",
    b" folded",
    b"0\r\n\r\n",
    b"2;x=y\r\nab\r\n",
    b"\0",
)
SOCKS_TOKENS = (
    b"\5\1\0",
    b"\5\2\0\2",
    b"\5\1\0\3\x0aok.example\1\xbb",
    b"\5\1\0\1\x7f\0\0\1\0\x50",
    b"\5\1\0\4" + bytes(15) + b"\1\0\x50",
    b"\5\3\0\1",
    b"\0",
    b".",
    b"%",
)
HOST_TOKENS = (
    b"ok.example",
    b"127.0.0.1",
    b"0x7f",
    b"0177",
    b"2130706433",
    b"::ffff:",
    b"[::1]",
    b":443",
    b"*.",
    b"**.",
    b"?",
    b"xn--",
    b"\xc3\xbc",
    b"\xe3\x80\x82",
    b"\xef\xbc\x8a",
    b".",
    b"-",
    b"\n",
)
