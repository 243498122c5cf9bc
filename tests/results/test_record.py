"""Records of stored output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.results.record import Decoder, Record, encode

records = st.builds(
    lambda first, more, size, omitted, at, stream, data: Record(
        first, first + more, size, omitted, at, stream, data
    ),
    first=st.integers(1, 2**40),
    more=st.integers(0, 100),
    size=st.integers(0, 2**30),
    omitted=st.integers(0, 2**40),
    at=st.floats(0, 2e9),
    stream=st.integers(0, 2),
    data=st.binary(max_size=200),
)


@given(st.lists(records, max_size=5), st.integers(1, 100))
def test_they_are_read_as_written_in_pieces_of_any_size(given: list[Record], step: int) -> None:
    data = b"".join(map(encode, given))
    decoder = Decoder()
    found = []
    for at in range(0, len(data), step):
        found += decoder.feed(data[at : at + step])
    assert found == given
    assert decoder.position == len(data)


def test_half_a_record_is_none() -> None:
    whole, half = (
        encode(Record(1, 1, 3, 0, 1.0, 0, b"abc")),
        encode(Record(2, 2, 3, 0, 1.0, 0, b"d")),
    )
    decoder = Decoder()
    assert len(list(decoder.feed(whole + half[:-1]))) == 1
    assert decoder.position == len(whole)


def test_rubbish_is_none() -> None:
    with pytest.raises(ValueError, match="no record at byte 0"):
        list(Decoder().feed(b"\xff" * 64))
