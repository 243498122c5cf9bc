"""Lines: what counts as a message, and that neither cuts nor length matter."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.transport.line_framing import LineDecoder, LineError


def decode(data: bytes, cuts: tuple[int, ...] = (), limit: int = 100) -> list[str | None]:
    """All lines, with the end of input; an error is the last entry, as None."""
    decoder = LineDecoder(limit)
    lines: list[str | None] = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    try:
        for start, end in itertools.pairwise(edges):
            decoder.feed(data[start:end])
            while (line := decoder.next_line()) is not None:
                lines.append(line)
        decoder.end()
        while (line := decoder.next_line()) is not None:
            lines.append(line)
    except LineError:
        lines.append(None)
    return lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\r\n", ["a", "b\r"]),
        (b"\n \t\n\r\n\xc2\xa0\na\n\n", ["a"]),
        (b"a\nlast", ["a", "last"]),
        (b"a\n  ", ["a"]),
        (b"last\r", ["last"]),
        (b" a \n", [" a "]),
        ("ü\u2028ö\n".encode(), ["ü\u2028ö"]),
        (b"a\x0bb\x0cc\x85\n".replace(b"\x85", b""), ["a\x0bb\x0cc"]),
        (b"a\n\xff\nb\n", ["a", None]),
        (b"a\n\xc3", ["a", None]),
    ],
)
def test_what_is_a_line(data: bytes, lines: list[str | None]) -> None:
    assert decode(data) == lines
    assert decode(data, tuple(range(len(data)))) == lines


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_the_limit_is_exact(end: bytes) -> None:
    assert decode(b"x" * 100 + end) == ["x" * 100]
    assert decode(b"x" * 101 + end) == [None]
    assert decode(b"x" * 102 + end) == [None]


def test_an_endless_line_is_refused_before_it_ends() -> None:
    decoder = LineDecoder(100)
    decoder.feed(b"x" * 102)
    with pytest.raises(LineError, match="100"):
        decoder.next_line()


def test_a_long_line_in_small_pieces_leaves_nothing_behind() -> None:
    size = 16 * 1024 * 1024
    piece = b"x" * 65536
    decoder = LineDecoder(size)
    tracemalloc.start()
    try:
        for _ in range(size // len(piece)):
            decoder.feed(piece)
            assert decoder.next_line() is None
        decoder.feed(b"\n")
        line = decoder.next_line()
        assert line is not None
        assert len(line) == size
        del line
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_lines_wait_until_they_are_pulled() -> None:
    decoder = LineDecoder(100)
    decoder.feed(b"1\n2\n3")
    assert decoder.next_line() == "1"
    assert decoder.backlog == 3
    decoder.feed(b"3\n")
    assert [decoder.next_line() for _ in range(3)] == ["2", "33", None]
    assert decoder.backlog == 0


@settings(deadline=None)
@given(
    data=st.lists(
        st.one_of(st.binary(max_size=30), st.text(max_size=40).map(str.encode)), max_size=8
    ).map(b"\n".join),
    cuts=st.lists(st.integers(0, 300), max_size=12),
)
def test_the_outcome_does_not_depend_on_the_cuts(data: bytes, cuts: list[int]) -> None:
    assert decode(data, tuple(cuts), limit=50) == decode(data, limit=50)
