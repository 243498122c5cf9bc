"""New text from old text and chunks.  Expectations were seen on the tool itself."""

from __future__ import annotations

import pytest

from handrail.patch.grammar import parse
from handrail.patch.hunks import UpdateFile
from handrail.patch.rewrite import ChunkNotFoundError, Rewritten, rewrite
from handrail.patch.seek import Level


def change(text: str, body: str) -> Rewritten:
    (hunk,) = parse(f"*** Begin Patch\n*** Update File: f\n{body}\n*** End Patch").hunks
    assert isinstance(hunk, UpdateFile)
    return rewrite(text, hunk.chunks, "/f")


@pytest.mark.parametrize(
    ("text", "body", "result"),
    [
        # kept lines keep their spelling, removed and added ones do not
        ("  a  \nb\n", " a\n-b\n+B", "  a  \nB\n"),
        ("  a\n", "-a\n+a", "a\n"),
        # line endings: the first one for what is new, their own for what stays
        ("a\r\nb\nc\n", " b\n+x", "a\r\nb\nx\r\nc\n"),
        ("a\nb\r\nc\n", "-b\n+b", "a\nb\nc\n"),
        ("a\rb", "-a\n+x", "x\rb\r"),
        ("a\rb\nc\r\n", "-c\n+x", "a\rb\nx\r"),
        ("a\x0cb\x85c\n", " a\x0cb\x85c\n+x", "a\x0cb\x85c\nx\n"),
        # the end of the file
        ("a", "+x", "a\nx\n"),
        ("a\r\nb", " a", "a\r\nb\r\n"),
        ("", "+x", "x\n"),
        ("a\n\n", "+x", "a\n\nx\n"),
        ("a\nb", "-a\n-b", ""),
        # additions without context go to the end and leave the cursor alone
        ("a\nb\n", "@@ a\n+x\n@@\n-b\n+c", "a\nc\nx\n"),
        ("a\n", "+x\n@@\n a\n+y", "a\nx\ny\n"),
        ("a\nb\n\n", "+x\n@@\n-\n+c", "a\nb\nc\nx\n"),
        # one empty line too many
        ("a\nb\n", "-b\n+B\n ", "a\nB\n"),
        ("a\nb\n", "-b\n-\n+B\n+", "a\nB\n"),
        ("a\nb\n", "-b\n \n+B", "a\n\nB\n"),
        ("a\nb\n", "-a\n+A\n@@\n \n+x", "A\n\nx\nb\n"),
        ("\n\ta\nx\n", "  \n-\n@@\n-x", "\n\ta\n"),
        # the marker of the end
        ("x\ny\nx\n", "-x\n+Y\n*** End of File", "x\ny\nY\n"),
        ("a\nb\n", "-b\n+B\n \n*** End of File", "a\nB\n"),
        ("a\nb\n", " \n+x\n*** End of File", "\nx\na\nb\n"),
        # order
        ("x\nx\nx\n", "-x\n+1\n@@\n-x\n+2", "1\n2\nx\n"),
        ("a\nb\na\n", "@@ a\n-a\n+x", "a\nb\nx\n"),
    ],
)
def test_result(text: str, body: str, result: str) -> None:
    assert change(text, body).text == result


@pytest.mark.parametrize(
    ("text", "body", "sentence"),
    [
        ("a\n", "@@   zz  \n-a", "Failed to find context '  zz' in /f"),
        ("a\nb\n", " q\n-b\n+x\n z", "Failed to find expected lines in /f:\nq\nb\nz"),
        ("a\nb\n", "-b\n\n\n", "Failed to find expected lines in /f:\nb\n\n\n"),
        ("a\nb\n", "-b\n@@ b\n-b", "Failed to find context 'b' in /f"),
        (
            "c\nc\n",
            "-c\n@@\n-c\n@@\n-c\n*** End of File",
            "Failed to find expected lines in /f:\nc",
        ),
        ("x\ny\n", "-x\n*** End of File", "Failed to find expected lines in /f:\nx"),
        ("a\rb\n", "-a\rb", "Failed to find expected lines in /f:\na\rb"),
        ("\ufeffa\n", "-a", "Failed to find expected lines in /f:\na"),
        ("", "@@ a\n+x", "Failed to find context 'a' in /f"),
    ],
)
def test_not_found(text: str, body: str, sentence: str) -> None:
    with pytest.raises(ChunkNotFoundError) as caught:
        change(text, body)
    assert str(caught.value) == sentence
    assert caught.value.path == "/f"


def test_leniency_is_reported() -> None:
    assert change("a\n b\n", "-a\n+x").level is Level.EXACT
    assert change("a\n b\n", "-a\n@@\n-b").level is Level.AROUND


def test_a_choice_is_reported_unless_context_made_it() -> None:
    assert change("a\na\n", "-a").ambiguous
    assert not change("k\na\na\n", "@@ k\n-a").ambiguous
    assert not change("a\nb\n", "-a").ambiguous
