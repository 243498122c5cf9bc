"""Request heads: strict, bounded, the same however they are cut.  And our short answers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.transport.http_head import (
    HEAD_LIMIT,
    HeadError,
    HeadReader,
    HttpRequest,
    HttpResponse,
    parse_request,
    parse_response,
    upgrade_problem,
)
from handrail.transport.websocket_upgrade import (
    accept_head,
    accept_value,
    make_key,
    refusal,
    request_head,
    response_problem,
)
from tests.support.raw_sockets import KEY, UPGRADE


def read(data: bytes, cuts: tuple[int, ...] = ()) -> tuple[HttpRequest | int | None, bytes]:
    reader = HeadReader()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        try:
            head = reader.feed(data[start:end])
            if head is not None:
                return parse_request(head), reader.rest + data[end:]
        except HeadError as error:
            return error.status, b""
    return None, b""


def request(head: str) -> HttpRequest:
    outcome, _ = read(head.replace("\n", "\r\n").encode("latin-1"))
    assert isinstance(outcome, HttpRequest)
    return outcome


def test_a_request_is_taken_apart() -> None:
    got = request("GET /a/b?x=1&y=?2 HTTP/1.1\nHost: h:1\nX-Two:  a \nx-two: b\n\n")
    assert (got.method, got.target) == ("GET", "/a/b?x=1&y=?2")
    assert (got.path, got.query) == ("/a/b", "x=1&y=?2")
    assert got.headers == (("host", "h:1"), ("x-two", "a"), ("x-two", "b"))
    assert got.header("X-TWO") == "a"
    assert got.header("origin") is None


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("*", "*", ""),
        ("http://host/p?q", "/p", "q"),
        ("http://host?q", "/", "q"),
        ("ws://host", "/", ""),
        ("/http://x", "/http://x", ""),
    ],
)
def test_the_forms_of_a_target(target: str, path: str, query: str) -> None:
    got = request(f"OPTIONS {target} HTTP/1.1\n\n")
    assert (got.path, got.query) == (path, query)


MALFORMED = {
    "no version": (b"GET /\r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\n\r\n", 400),
    "empty": (b"\r\n\r\n", 400),
    "control character in the target": (b"GET /\x00 HTTP/1.1\r\n\r\n", 400),
    "not ASCII in the target": (b"GET /\xc3\xbc HTTP/1.1\r\n\r\n", 400),
    "bad method": (b"G(T / HTTP/1.1\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\n", 505),
    "no colon": (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "no name": (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
    "folded": (b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nA: b\x00\r\n\r\n", 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "LF inside": (b"GET / HTTP/1.1\r\nA: b\nc: d\r\n\r\n", 400),
    "CR inside": (b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
    "too many headers": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
    "too large": (b"GET / HTTP/1.1\r\na: " + b"b" * HEAD_LIMIT + b"\r\n\r\n", 431),
    "endless": (b"G" * (HEAD_LIMIT + 1), 431),
}


@pytest.mark.parametrize(("data", "status"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_heads_are_refused(data: bytes, status: int) -> None:
    assert read(data)[0] == status


def test_the_limits_are_exact() -> None:
    assert isinstance(read(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100 + b"\r\n")[0], HttpRequest)
    frame = b"GET / HTTP/1.1\r\na: \r\n\r\n"
    filler = b"b" * (HEAD_LIMIT - len(frame))
    assert isinstance(read(frame.replace(b"a: ", b"a: " + filler))[0], HttpRequest)
    assert read(frame.replace(b"a: ", b"a: b" + filler))[0] == 431


@settings(deadline=None)
@given(
    headers=st.lists(
        st.tuples(
            st.from_regex(r"[A-Za-z-]{1,10}", fullmatch=True),
            st.from_regex(r"[!-~]{0,20}", fullmatch=True),
        ),
        max_size=8,
    ),
    rest=st.binary(max_size=50),
    cuts=st.lists(st.integers(0, 400), max_size=10),
)
def test_a_head_may_arrive_in_any_pieces(
    headers: list[tuple[str, str]], rest: bytes, cuts: list[int]
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    data = f"GET /x HTTP/1.1\r\n{lines}\r\n".encode() + rest
    got, left = read(data, tuple(cuts))
    assert isinstance(got, HttpRequest)
    assert got.headers == tuple((name.lower(), value) for name, value in headers)
    assert left == rest


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_input_raises_anything_else(data: bytes) -> None:
    read(data + b"\r\n\r\n")
    try:
        parse_response(data)
    except HeadError:
        pass


def test_an_answer_says_its_length_and_that_it_is_the_last() -> None:
    answer = HttpResponse(405, b"no", headers=(("Allow", "GET, HEAD"),))
    head, _, body = answer.encode().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    lines = head.split(b"\r\n")
    assert b"Content-Length: 2" in lines
    assert b"Connection: close" in lines
    assert b"Allow: GET, HEAD" in lines
    assert b"Content-Type: text/plain; charset=utf-8" in lines
    assert body == b"no"
    assert answer.encode(head_only=True) == head + b"\r\n\r\n"


def test_an_empty_answer_has_no_type() -> None:
    assert HttpResponse(200).encode() == (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    )
    assert HttpResponse(499).encode().startswith(b"HTTP/1.1 499 ")


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "日"])
def test_no_header_of_ours_holds_a_line_break(value: str) -> None:
    with pytest.raises(ValueError):
        HttpResponse(200, headers=(("X", value),)).encode()


VALID = UPGRADE.decode()


def upgrade(old: str = "", new: str = "") -> HttpRequest:
    assert old in VALID
    outcome, _ = read(VALID.replace(old, new).encode() if old else UPGRADE)
    assert isinstance(outcome, HttpRequest)
    return outcome


def test_a_valid_upgrade_is_known_and_accepted() -> None:
    assert upgrade_problem(upgrade()) is None
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in accept_head(upgrade())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GET", "POST"),
        ("HTTP/1.1", "HTTP/1.0"),
        ("Upgrade: websocket\r\n", ""),
        ("Upgrade: websocket", "Upgrade: h2c"),
        ("Connection: keep-alive, Upgrade\r\n", ""),
        ("keep-alive, Upgrade", "keep-alive"),
        ("Version: 13", "Version: 8"),
        ("Version: 13", "Version: 13\r\nSec-WebSocket-Version: 8"),
        ("Sec-WebSocket-Version: 13\r\n", ""),
        (KEY, "short"),
        (KEY, "AAAA"),
        (KEY, "*" * 24),
        (f"Sec-WebSocket-Key: {KEY}\r\n", ""),
        (f"Key: {KEY}", f"Key: {KEY}\r\nSec-WebSocket-Key: {KEY}"),
    ],
)
def test_anything_less_is_no_upgrade(old: str, new: str) -> None:
    assert upgrade_problem(upgrade(old, new)) is not None


def test_names_and_tokens_of_an_upgrade_are_case_insensitive() -> None:
    assert upgrade_problem(upgrade("Upgrade: websocket", "UPGRADE: h2c, WebSocket")) is None


def test_a_refusal_names_the_version() -> None:
    assert b"Sec-WebSocket-Version: 13\r\n" in refusal("no").encode()


def test_a_clients_request_is_a_valid_upgrade() -> None:
    got, _ = read(
        request_head("h:1", "/p?q", make_key(bytes(16)), (("Authorization", "Bearer t"),))
    )
    assert isinstance(got, HttpRequest)
    assert upgrade_problem(got) is None
    assert got.header("authorization") == "Bearer t"
    assert got.header("sec-websocket-extensions") is None


@pytest.mark.parametrize("header", [("Host", "x"), ("sec-websocket-key", "x"), ("A", "b\r\nC: d")])
def test_a_client_cannot_break_its_own_request(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError):
        request_head("h", "/", KEY, (header,))


GOOD_101 = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\n"
    f"Sec-WebSocket-Accept: {accept_value(KEY)}"
)


@pytest.mark.parametrize(
    ("old", "new", "good"),
    [
        ("", "", True),
        ("Upgrade: WebSocket\r\n", "", False),
        ("Connection: upgrade\r\n", "", False),
        ("Accept: ", "Accept: x", False),
        ("Connection: ", "Sec-WebSocket-Protocol: p\r\nConnection: ", False),
        ("Connection: ", "Sec-WebSocket-Extensions: permessage-deflate\r\nConnection: ", False),
    ],
)
def test_a_servers_answer_is_checked(old: str, new: str, good: bool) -> None:
    head = GOOD_101.replace(old, new) if old else GOOD_101
    assert (response_problem(parse_response(head.encode()), KEY) is None) is good
