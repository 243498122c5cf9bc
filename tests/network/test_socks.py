"""The SOCKS handshake, in whatever pieces it comes."""

from __future__ import annotations

import pytest

from handrail.network.socks import SocksError, SocksReader, SocksRequest

HELLO = b"\5\1\0"


def name(text: bytes, port: int = 443) -> bytes:
    return b"\5\1\0\3" + bytes((len(text),)) + text + port.to_bytes(2, "big")


def read(raw: bytes, size: int = 1000) -> tuple[bytes, SocksRequest | None]:
    reader = SocksReader()
    answers = b""
    for at in range(0, len(raw), size):
        answer, request = reader.feed(raw[at : at + size])
        answers += answer
        if request is not None:
            return answers, request
    return answers, None


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("request_bytes", "host"),
    [
        (name(b"OK.example."), "ok.example"),
        (name(b"127.1"), "127.0.0.1"),
        (b"\5\1\0\1\x7f\0\0\1\1\xbb", "127.0.0.1"),
        (b"\5\1\0\4" + bytes(10) + b"\xff\xff\x7f\0\0\1\1\xbb", "127.0.0.1"),
        (b"\5\1\0\4" + bytes(15) + b"\1\1\xbb", "::1"),
    ],
)
def test_connect(request_bytes: bytes, host: str, size: int) -> None:
    answer, request = read(HELLO + request_bytes, size)
    assert answer == b"\5\0"
    assert request is not None
    assert (request.host.text, request.port) == (host, 443)


def test_early_bytes_are_kept() -> None:
    _, request = read(HELLO + name(b"a.example") + b"early")
    assert request is not None
    assert request.rest == b"early"


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        (b"\4\1", b""),
        (b"\5\1\2", b"\5\xff"),
        (b"\5\0", b"\5\xff"),
        (HELLO + b"\4\1\0\1\0", b""),
        (HELLO + b"\5\2\0\1\0\0\0\0\0\0", b"\7"),
        (HELLO + b"\5\3\0\1\0\0\0\0\0\0", b"\7"),
        (HELLO + b"\5\1\0\2\0\0\0\0\0\0", b"\x08"),
        (HELLO + name(b""), b"\2"),
        (HELLO + name(b"a\0.example"), b"\2"),
        (HELLO + name(b"127.0.0.1\0.ok.example"), b"\2"),
        (HELLO + name(b"a%.example"), b"\2"),
        (HELLO + name(b"\xc3\xbc.example"), b"\2"),
        (HELLO + name(b"ok.example", 0), b"\2"),
        (HELLO + name(b"256.1.1.1"), b"\2"),
    ],
)
def test_refusals(raw: bytes, answer: bytes) -> None:
    with pytest.raises(SocksError) as caught:
        read(raw)
    got = caught.value.answer
    assert got == answer if len(answer) != 1 else got[:2] == b"\5" + answer
