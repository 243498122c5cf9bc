"""Bodies end where their framing says, in whatever pieces they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.network.bodies import LAST_CHUNK, BadBody, ChunkedBody, LengthBody, OpenBody, chunk


def test_a_length() -> None:
    body = LengthBody(5)
    assert body.feed(b"abc") == b"abc"
    assert not body.done
    assert body.feed(b"defgh") == b"de"
    assert (body.done, body.rest) == (True, b"fgh")
    assert LengthBody(0).done


def test_without_any_framing_everything_belongs_to_it() -> None:
    assert OpenBody().feed(b"abc") == b"abc"


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.binary(max_size=5),
    st.integers(1, 9),
)
def test_chunks_in_any_pieces(chunks: list[bytes], rest: bytes, size: int) -> None:
    raw = b"".join(map(chunk, chunks)) + LAST_CHUNK + rest
    body = ChunkedBody()
    got, at = b"", 0
    while not body.done:
        got += body.feed(raw[at : at + size])
        at += size
    assert got == b"".join(chunks)
    assert body.rest + raw[at:] == rest


@pytest.mark.parametrize(
    "raw", [b"2;x=y\r\nab\r\n0\r\nT: 1\r\n\r\nrest", b"2 ;x\r\nab\r\n00\r\n\r\nrest"]
)
def test_extensions_and_trailers_are_dropped(raw: bytes) -> None:
    body = ChunkedBody()
    assert body.feed(raw) == b"ab"
    assert (body.done, body.rest) == (True, b"rest")


@pytest.mark.parametrize(
    "raw",
    [
        b"2\nab\r\n",
        b"0x2\r\nab\r\n",
        b"-2\r\n",
        b"+2\r\n",
        b"\r\n",
        b"g\r\n",
        b" 2\r\nab",
        b"2 \r\nab",
        b"2\r\nabc\r\n",
        b"2\r\nab0\r\n",
        b"ffffffffffffffff\r\n",
        b"2;\0\r\n",
        b"0\r\nbad trailer\r\n",
        b"0\r\n folded\r\n",
        b"a" * 5000,
        b"0\r\n" + b"T: x\r\n" * 20000,
    ],
)
def test_broken_framing(raw: bytes) -> None:
    with pytest.raises(BadBody):
        ChunkedBody().feed(raw)
