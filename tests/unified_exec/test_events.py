from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handrail.unified_exec.events import MAX_DELTA_BYTES, Frames, emit_boundary


@given(st.text(max_size=30), st.data())
def test_a_text_is_cut_between_characters_wherever_it_arrives(
    text: str, data: st.DataObject
) -> None:
    raw = text.encode()
    at = data.draw(st.integers(0, len(raw)))
    frames = Frames()
    pieces = [*frames.cut(raw[:at]), *frames.cut(raw[at:]), *frames.cut(b"", final=True)]
    assert b"".join(pieces) == raw
    for piece in pieces:
        piece.decode()


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_bytes_of_any_kind_come_through_in_order(chunks: list[bytes]) -> None:
    frames = Frames()
    pieces = [piece for chunk in chunks for piece in frames.cut(chunk)]
    pieces += frames.cut(b"", final=True)
    assert b"".join(pieces) == b"".join(chunks)


@given(st.binary(max_size=12))
def test_at_most_three_bytes_wait_and_they_begin_a_character(raw: bytes) -> None:
    ready = emit_boundary(raw)
    held = raw[ready:]
    assert len(held) <= 3
    if held:
        assert any(
            _decodes(held + rest)
            for rest in (
                b"\x80",
                b"\xa0",
                b"\x90",
                b"\x80\x80",
                b"\xa0\x80",
                b"\x90\x80\x80",
                b"\x80\x80\x80",
            )
        )


def _decodes(raw: bytes) -> bool:
    try:
        return len(raw.decode()) == 1
    except UnicodeDecodeError:
        return False


def test_frames_are_small_and_not_too_many() -> None:
    frames = Frames(most=3)
    pieces = frames.cut("é".encode() * MAX_DELTA_BYTES * 4)
    assert [len(piece) for piece in pieces] == [MAX_DELTA_BYTES] * 3
    assert frames.cut(b"more") == []
    odd = Frames().cut(b"x" + "é".encode() * MAX_DELTA_BYTES)
    assert len(odd[0]) == MAX_DELTA_BYTES - 1
