"""Heads are read in one way or refused; what is sent on is written anew."""

from __future__ import annotations

import pytest

from handrail.network.heads import ProxyHeadReader, ProxyRequest, forwarded, parse_request
from handrail.transport.http_head import HeadError


def read(raw: str) -> ProxyRequest:
    reader = ProxyHeadReader()
    head = reader.feed(raw.encode("latin-1"))
    assert head is not None
    return parse_request(head)


def status(raw: str) -> int:
    with pytest.raises(HeadError) as caught:
        read(raw)
    return caught.value.status


@pytest.mark.parametrize(
    ("line", "host", "port", "path"),
    [
        ("GET http://ok.example/", "ok.example", 80, "/"),
        ("GET HTTP://OK.example.:8080/x?y=http://z/", "ok.example", 8080, "/x?y=http://z/"),
        ("GET http://ok.example", "ok.example", 80, "/"),
        ("GET http://ok.example?q", "ok.example", 80, "/?q"),
        ("OPTIONS http://ok.example", "ok.example", 80, "*"),
        ("GET http://[2600:11::44]:81/", "2600:11::44", 81, "/"),
        ("GET http://127.1/", "127.0.0.1", 80, "/"),
        ("CONNECT ok.example:443", "ok.example", 443, ""),
        ("CONNECT [::1]:443", "::1", 443, ""),
    ],
)
def test_targets(line: str, host: str, port: int, path: str) -> None:
    request = read(f"{line} HTTP/1.1\r\n\r\n")
    assert (request.target.host.text, request.target.port, request.path) == (host, port, path)


def test_origin_form_takes_its_host_from_the_field() -> None:
    request = read("GET /x HTTP/1.1\r\nHost: OK.example:81\r\n\r\n")
    assert request.target.key == ("ok.example", 81)


@pytest.mark.parametrize(
    "line",
    [
        "GET https://ok.example/",
        "GET ftp://ok.example/",
        "GET ws://ok.example/",
        "GET //ok.example/",
        "GET *",
        "OPTIONS *",
        "GET ok.example/",
        "GET http:/ok.example/",
        "GET http:///x",
        "GET http://",
        "GET http://u@ok.example/",
        "GET http://u:p@ok.example/",
        "GET http://ok.example@bad.example/",
        "GET http://ok.example#@bad.example/",
        "GET http://ok.example/#x",
        "GET http://ok.example\\@bad.example/",
        "GET http://ok.example\\.bad.example/",
        "GET http://ok%2eexample/",
        "GET http://ok.example:0/",
        "GET http://ok.example:65536/",
        "GET http://ok.example:80x/",
        "GET http://ok.example:/",
        "GET http://::1/",
        "GET http://[127.0.0.1]/",
        "GET http://[::1]x/",
        "GET http://\xc3\xbc.example/",
        "CONNECT ok.example",
        "CONNECT ok.example:",
        "CONNECT ok.example:0",
        "CONNECT ok.example:65536",
        "CONNECT http://ok.example:443/",
        "CONNECT ok.example:443/",
        "CONNECT u@ok.example:443",
        "CONNECT 2600:11::44:80",
        "CONNECT /",
        "GET  http://ok.example/",
        "GET http://ok.example/ x",
        "G@T http://ok.example/",
        " GET http://ok.example/",
    ],
)
def test_targets_that_are_refused(line: str) -> None:
    assert status(f"{line} HTTP/1.1\r\n\r\n") == 400


@pytest.mark.parametrize("version", ["HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/1.1 ", "HTTP/0.9"])
def test_other_versions(version: str) -> None:
    assert status(f"GET http://ok.example/ {version}\r\n\r\n") == 400


@pytest.mark.parametrize(
    "fields",
    [
        "Host: bad.example",
        "Host: ok.example:81",
        "Host: ok.example\r\nHost: ok.example",
        "Host: ",
        "Host: u@ok.example",
        "Host: ok.example, bad.example",
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4, 5",
        "Content-Length: +4",
        "Content-Length: -1",
        "Content-Length: 0x4",
        "Content-Length: 4 4",
        "Content-Length: ",
        "Content-Length: 9999999999999999999",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding:",
        "Transfer-Encoding: xchunked",
        "X-A: 1\r\n folded",
        "X-A: 1\r\n\tfolded",
        "X-A : 1",
        " X-A: 1",
        "X-A",
        ": 1",
        "X-A: a\0b",
        "X-A: a\rb",
        "X\x80: 1",
    ],
)
def test_fields_that_are_refused(fields: str) -> None:
    assert status(f"GET http://ok.example/ HTTP/1.1\r\n{fields}\r\n\r\n") == 400


@pytest.mark.parametrize(
    "raw",
    [
        "GET http://ok.example/ HTTP/1.1\nHost: ok.example\n\n",
        "GET http://ok.example/ HTTP/1.1\r\nX: 1\nY: 2\r\n\r\n",
        "GET http://ok.example/ HTTP/1.1\nHost: ok.example\r\n\r\n",
        "GET http://ok.example/ HTTP/1.1\r\nX: 1\n\r\n",
        "\nGET http://ok.example/ HTTP/1.1\r\n\r\n",
    ],
)
def test_bare_line_feeds(raw: str) -> None:
    assert status(raw) == 400


def test_a_length_said_twice_is_one_length() -> None:
    request = read("POST http://a/ HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n")
    assert request.length == 4
    assert forwarded(request).count(b"content-length: 4") == 1


def test_chunked_in_an_old_version_is_refused() -> None:
    assert status("POST http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == 400


def test_limits() -> None:
    assert status(f"GET http://a/{'x' * 16384} HTTP/1.1\r\n\r\n") == 414
    assert status(f"GET http://a/{'x' * 100_000}") == 414
    assert status(f"GET http://a/ HTTP/1.1\r\nX: {'x' * 65536}\r\n\r\n") == 431
    many = "".join(f"X-{number}: 1\r\n" for number in range(257))
    assert status(f"GET http://a/ HTTP/1.1\r\n{many}\r\n") == 431
    assert read(f"GET http://a/{'x' * 16000} HTTP/1.1\r\n\r\n").path.endswith("x")


def test_unix_sockets_are_not_offered() -> None:
    assert status("GET http://a/ HTTP/1.1\r\nX-Unix-Socket: /run/docker.sock\r\n\r\n") == 501


def test_empty_lines_before_a_request_in_any_pieces() -> None:
    raw = b"\r\n\r\nGET http://a/ HTTP/1.1\r\n\r\nrest"
    reader = ProxyHeadReader()
    heads = [reader.feed(raw[at : at + 1]) for at in range(len(raw) - 4)]
    assert heads[-1] == b"GET http://a/ HTTP/1.1"


def test_what_is_sent_on_is_written_anew() -> None:
    request = read(
        "POST http://OK.example:8080/x HTTP/1.0\r\nHost: ok.EXAMPLE:8080\r\n"
        "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"
        "Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nUpgrade: websocket\r\n"
        "HTTP2-Settings: x\r\nTrailer: x\r\nX-Kept: a  b\r\nContent-Length: 003\r\n\r\n"
    )
    assert request.keep
    assert forwarded(request) == (
        b"POST /x HTTP/1.1\r\nhost: ok.example:8080\r\nx-kept: a  b\r\ncontent-length: 3\r\n\r\n"
    )
    assert forwarded(request, absolute=True, authorization="Basic y").startswith(
        b"POST http://ok.example:8080/x HTTP/1.1\r\nhost: ok.example:8080\r\n"
        b"proxy-authorization: Basic y\r\n"
    )


def test_a_connection_field_cannot_take_the_host_away() -> None:
    request = read("GET http://ok.example/ HTTP/1.1\r\nConnection: host, close\r\n\r\n")
    assert b"\r\nhost: ok.example\r\n" in forwarded(request)
    assert not request.keep
