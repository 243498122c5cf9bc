"""End marks are found however a stream is cut, and output is kept within its limit."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from handrail.workspace.output.kept_output import KeptOutput
from handrail.workspace.sessions.marked_output import MarkedStream
from handrail.workspace.sessions.shell_script import BASH, EDGE, command, quoted

TOKENS = ("0123abcd", "4567cdef")
PIECES = st.lists(
    st.sampled_from([b"x", b"\0", EDGE, EDGE + b"0123", EDGE + b"0123abcd", b":", b"abcd\n"]),
    max_size=12,
).map(b"".join)


def mark(token: str, text: bytes) -> bytes:
    return EDGE + token.encode() + b":" + text + b":" + token.encode() + EDGE


@given(PIECES, PIECES, PIECES, st.lists(st.integers(0, 200), max_size=10))
def test_a_stream_is_read_alike_however_it_is_cut(
    first: bytes, second: bytes, third: bytes, cuts: list[int]
) -> None:
    begins = [EDGE + token.encode() + b":" for token in TOKENS]
    if any(begin in first + b"|" + second for begin in begins):
        return  # an unguessable token is not in the output
    said, marks = bytearray(), []
    stream = MarkedStream(said.extend, lambda token, text: marks.append((token, text, len(said))))
    for token in TOKENS:
        stream.expect(token)
    data = first + mark(TOKENS[0], b"0 /a:b") + second + mark(TOKENS[1], b"") + third
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        stream.feed(data[start:end])
    stream.flush()
    assert bytes(said) == first + second + third
    assert marks == [
        (TOKENS[0], b"0 /a:b", len(first)),
        (TOKENS[1], b"", len(first) + len(second)),
    ]


def test_marks_that_are_not_expected_are_output() -> None:
    said = bytearray()
    stream = MarkedStream(said.extend, lambda token, text: None)
    stream.expect(TOKENS[0])
    stream.forget()
    stream.feed(mark(TOKENS[0], b""))
    assert bytes(said) == mark(TOKENS[0], b"")


@given(st.integers(1, 30_000), st.integers(1, 4))
def test_a_mark_that_is_never_closed_is_output(size: int, times: int) -> None:
    said, marks = bytearray(), []
    stream = MarkedStream(said.extend, lambda token, text: marks.append((token, text)))
    stream.expect(TOKENS[0])
    begun = (EDGE + TOKENS[0].encode() + b":") * times
    data = begun + b"x" * 40_000
    for start in range(0, len(data), size):
        stream.feed(data[start : start + size])
    assert bytes(said) == data
    stream.feed(mark(TOKENS[0], b"0 /a"))
    assert bytes(said) == data
    assert marks == [(TOKENS[0], b"0 /a")]


@given(st.lists(st.binary(max_size=40)), st.one_of(st.none(), st.integers(0, 60)))
def test_the_first_and_the_last_half_are_kept(pieces: list[bytes], limit: int | None) -> None:
    kept, whole = KeptOutput(limit), b"".join(pieces)
    for piece in pieces:
        kept.add(piece)
    taken = kept.take()
    assert len(taken) + kept.omitted == len(whole)
    if limit is None or len(whole) <= limit:
        assert taken == whole
    else:
        head = limit - limit // 2
        assert taken == whole[:head] + whole[len(whole) - limit // 2 :]


def test_a_script_does_not_hold_its_own_mark() -> None:
    token = "0123456789abcdef"
    text = command(BASH, b"it's", token, status=0, stdin=None)
    assert token.encode() not in text
    assert quoted(b"it's") in text
