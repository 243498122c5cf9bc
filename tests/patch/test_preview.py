"""Following a patch while it is written."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.patch.grammar import PatchSyntaxError, parse
from handrail.patch.hunks import AddFile, Chunk, DeleteFile, Line, LineKind, UpdateFile
from handrail.patch.preview import Preview

TEXT = (
    "\n<<'EOF'\n*** Begin Patch\n*** Environment ID: there\n*** Add File: a\n+1\n+2\r\n"
    "*** Delete File: b\n*** Update File: c\n*** Move to: d\n@@ x\n-old\n+new\n*** End Patch\nEOF\n"
)


def test_hunks_appear_as_their_lines_come() -> None:
    preview = Preview()
    assert preview.feed("*** Begin Patch\n*** Add File: a\n+1\n+").hunks == (AddFile("a", "1\n"),)
    assert preview.feed("2\n*** Delete File: b\n").hunks == (
        AddFile("a", "1\n2\n"),
        DeleteFile("b"),
    )
    assert preview.feed("*** Update File: c\n").hunks[2:] == (UpdateFile("c", ()),)
    line = Line(LineKind.REMOVE, "old")
    assert preview.feed("-old\n").hunks[2:] == (UpdateFile("c", (Chunk((line,)),)),)


@given(st.lists(st.integers(0, len(TEXT))))
def test_however_it_is_cut_the_end_is_the_same(cuts: list[int]) -> None:
    preview = Preview()
    places = [0, *sorted(cuts), len(TEXT)]
    for start, end in itertools.pairwise(places):
        preview.feed(TEXT[start:end])
    assert preview.patch == parse(TEXT)


def test_what_cannot_become_a_patch_is_refused_at_once() -> None:
    preview = Preview()
    preview.feed("*** Begin Patch\n*** Fo")
    with pytest.raises(PatchSyntaxError) as caught:
        preview.feed("o\n")
    assert caught.value.line == 2
