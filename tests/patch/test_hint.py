"""What is said about chunks that were not found."""

from __future__ import annotations

import pytest

from handrail.patch.grammar import parse
from handrail.patch.hint import explain
from handrail.patch.hunks import UpdateFile
from handrail.patch.rewrite import ChunkNotFoundError, rewrite

FILE = "def f():\n    return 1\n\n\ndef g():\n    return 2\n"


def hint(body: str, text: str = FILE) -> str:
    (hunk,) = parse(f"*** Begin Patch\n*** Update File: f\n{body}\n*** End Patch").hunks
    assert isinstance(hunk, UpdateFile)
    with pytest.raises(ChunkNotFoundError) as caught:
        rewrite(text, hunk.chunks, "/f")
    return explain(caught.value)


def test_the_first_line_that_differs_is_named() -> None:
    assert hint(" def g():\n-    return 3\n+    return 4") == (
        "The closest place is lines 5 to 6; line 6 is '    return 2', not '    return 3'."
    )


def test_a_single_line_that_is_almost_right() -> None:
    assert (
        hint("@@ def h():\n-x")
        == "The closest place is line 1; line 1 is 'def f():', not 'def h():'."
    )


def test_lines_that_were_passed_already() -> None:
    said = hint("-    return 2\n@@\n-def f():")
    assert said.startswith("These lines stand at line 1, before the place the search had already")


def test_a_file_that_ends_too_early() -> None:
    assert hint(" def g():\n     return 2\n-more") == (
        "The closest place is lines 5 to 6, where the file ends before 'more'."
    )


def test_the_right_lines_at_the_wrong_place() -> None:
    said = hint("-def f():\n*** End of File")
    assert said == "The lines stand at line 1, but not where the patch wants them."


@pytest.mark.parametrize("text", ["", "something else\n"])
def test_nothing_alike_no_hint(text: str) -> None:
    assert hint("-xyz", text) == ""
