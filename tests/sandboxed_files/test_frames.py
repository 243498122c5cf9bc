from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.sandboxed_files import frames
from handrail.sandboxed_files.frames import BrokenFrame, FrameReader


def joined(head: object, body: bytes = b"") -> bytes:
    return b"".join(bytes(piece) for piece in frames.encode(head, body))


@given(
    st.lists(st.tuples(st.lists(st.text() | st.integers()), st.binary()), max_size=5),
    st.integers(1, 50),
)
def test_frames_survive_any_cutting(
    given_frames: list[tuple[list[object], bytes]], cut: int
) -> None:
    data = b"".join(joined(head, body) for head, body in given_frames)
    reader = FrameReader()
    found = []
    for at in range(0, len(data), cut):
        found += [(frames.decode_head(h), b) for h, b in reader.feed(data[at : at + cut])]
    assert found == given_frames


@given(st.binary().filter(lambda path: b"\0" not in path))
def test_paths_survive(path: bytes) -> None:
    ((head, _),) = FrameReader().feed(joined([frames.path_text(path)]))
    assert frames.path_bytes(frames.decode_head(head)[0]) == path


def test_what_is_no_frame_is_told() -> None:
    for lengths in ((frames.LONGEST_HEAD + 1, 0), (0, frames.LONGEST_BODY + 1)):
        with pytest.raises(BrokenFrame):
            list(FrameReader().feed(struct.pack(">II", *lengths)))
    with pytest.raises(BrokenFrame):
        frames.decode_head(b"{")
    for head in (b"", b"[1] [2]", b"[1],", b"\xff"):
        with pytest.raises(BrokenFrame):
            frames.decode_head(head)
