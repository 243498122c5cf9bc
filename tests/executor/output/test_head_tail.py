from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handrail.executor.output.head_tail import HeadTail

CHUNKS = st.lists(st.binary(max_size=12), max_size=12)


def filled(cap: int, chunks: list[bytes]) -> HeadTail:
    buffer = HeadTail(cap)
    for chunk in chunks:
        buffer.append(chunk)
    return buffer


@given(st.integers(0, 20), CHUNKS)
def test_both_ends_of_the_whole_are_kept(cap: int, chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    buffer = filled(cap, chunks)
    assert buffer.total == len(whole)
    assert buffer.retained == min(len(whole), cap)
    if len(whole) <= cap:
        assert buffer.content() == buffer.rendered() == whole
    else:
        left = cap // 2
        right = cap - left
        assert buffer.head == whole[:left]
        assert buffer.tail == whole[len(whole) - right :]
        assert buffer.omitted == len(whole) - cap


@given(st.integers(0, 20), CHUNKS, CHUNKS)
def test_appending_a_buffer_is_appending_its_bytes(
    cap: int, first: list[bytes], second: list[bytes]
) -> None:
    joined = filled(cap, first)
    joined.extend(filled(cap, second))
    assert joined.rendered() == filled(cap, first + second).rendered()


@given(st.integers(0, 20), CHUNKS, CHUNKS)
def test_taking_starts_again(cap: int, first: list[bytes], second: list[bytes]) -> None:
    buffer = filled(cap, first)
    taken = buffer.take()
    assert taken.rendered() == filled(cap, first).rendered()
    assert buffer.total == 0
    for chunk in second:
        buffer.append(chunk)
    assert buffer.rendered() == filled(cap, second).rendered()


def test_bytes_lost_on_the_way_are_counted_and_never_bridged() -> None:
    buffer = HeadTail(20)
    buffer.append(b"abc")
    buffer.skip(5)
    buffer.append(b"xyz")
    assert buffer.rendered() == b"abc\n... 5 bytes omitted ...\nxyz"
    buffer.skip(2)
    buffer.append(b"!")
    assert buffer.rendered() == b"abc\n... 10 bytes omitted ...\n!"
    assert buffer.total == 14
