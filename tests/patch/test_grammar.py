"""The text form.  Every expectation here was seen on the tool itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.patch.grammar import PatchSyntaxError, parse
from handrail.patch.hunks import AddFile, Chunk, DeleteFile, Line, LineKind, UpdateFile

FIRST = "The first line of the patch must be '*** Begin Patch'"
LAST = "The last line of the patch must be '*** End Patch'"
HEADERS = (
    "is not a valid hunk header. Valid hunk headers: '*** Add File: {path}', "
    "'*** Delete File: {path}', '*** Update File: {path}'"
)
LINES = "Every line should start with ' ' (context line), '+' (added line), or '-' (removed line)"
EMPTY_CHUNK = "Update hunk does not contain any lines"


def wrap(body: str) -> str:
    return f"*** Begin Patch\n{body}\n*** End Patch"


def update(body: str) -> str:
    return wrap(f"*** Update File: f\n{body}")


def error(text: str) -> tuple[str, int]:
    with pytest.raises(PatchSyntaxError) as caught:
        parse(text)
    return str(caught.value), caught.value.line


def keep(text: str) -> Line:
    return Line(LineKind.KEEP, text)


def drop(text: str) -> Line:
    return Line(LineKind.REMOVE, text)


def add(text: str) -> Line:
    return Line(LineKind.ADD, text)


def chunks(body: str) -> tuple[Chunk, ...]:
    (hunk,) = parse(update(body)).hunks
    assert isinstance(hunk, UpdateFile)
    return hunk.chunks


def test_all_kinds_of_hunks() -> None:
    patch = parse(
        wrap(
            "*** Environment ID: there\n*** Add File: a b\n+1\n+\n*** Delete File: c\n"
            "*** Update File: d\n*** Move to: e\n@@ x\n k\n-r\n+a\n*** End of File"
        )
    )
    assert patch.environment_id == "there"
    assert patch.hunks == (
        AddFile("a b", "1\n\n"),
        DeleteFile("c"),
        UpdateFile("d", (Chunk((keep("k"), drop("r"), add("a")), "x", True),), "e"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "*** Begin Patch\n*** End Patch",
        "\n\n *** Begin Patch \n\t*** End Patch\n",
        "*** Begin Patch\r\n*** End Patch\r\n",
        "<<EOF\n*** Begin Patch\n*** End Patch\nEOF",
        "<<'EOF'\n*** Begin Patch\n*** End Patch\nEOF\n\n",
        '  <<"EOF"\r\n*** Begin Patch\r\n*** End Patch\r\n  EOF',
        "<<EOF\n*** Begin Patch\n*** End Patch\nno EOF",
        "*** Begin Patch\n*** End Patch\n*** End Patch",
        "*** Begin Patch\n*** End Patch\n\n  \n  *** End Patch",
        "*** Begin Patch\n*** Environment ID:x\n*** End Patch",
    ],
)
def test_nothing_to_do_is_a_patch(text: str) -> None:
    assert parse(text).hunks == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", LAST),
        (" \n ", LAST),
        ("hello", FIRST),
        ("*** Begin Patch", LAST),
        ("*** End Patch", FIRST),
        ("*** Begin Patch *** End Patch", FIRST),
        ("*** Begin Patch\r*** End Patch", FIRST),
        ("\x1c*** Begin Patch\n*** End Patch", FIRST),
        ("\ufeff*** Begin Patch\n*** End Patch", FIRST),
        ("*** Begin Patch\n*** Foo", LAST),
        ("*** Begin Patch\n*** End Patch\nmore", LAST),
        ("*** Begin Patch\n*** End Patch\n*** Foo\n*** End Patch", LAST),
        ("*** Begin Patch\n*** End Patch\n*** End Patch\n*** End Patch", LAST),
        ("<<EOF \n*** Begin Patch\n*** End Patch\nEOF", FIRST),
        ("<<-EOF\n*** Begin Patch\n*** End Patch\nEOF", FIRST),
        ("<<PATCH\n*** Begin Patch\n*** End Patch\nPATCH", FIRST),
        ("<<EOF\n\n*** Begin Patch\n*** End Patch\nEOF", FIRST),
        ("<<EOF\n*** Begin Patch\nEOF", FIRST),
        ("<<EOF\n*** Begin Patch\n*** Add File: f\nEOF", LAST),
        (wrap("*** Environment ID: "), "apply_patch environment_id cannot be empty"),
        (
            wrap("*** Environment ID: a\n*** Environment ID: "),
            "apply_patch environment_id cannot be specified more than once",
        ),
    ],
)
def test_the_whole_is_wrong(text: str, sentence: str) -> None:
    assert error(text) == (sentence, 0)


@pytest.mark.parametrize(
    ("body", "bad", "line"),
    [
        ("*** Foo", "*** Foo", 2),
        ("  zz\t", "zz", 2),
        ("", "", 2),
        ("*** Begin Patch", "*** Begin Patch", 2),
        ("*** Add File:f", "*** Add File:f", 2),
        ("*** Add File:  ", "*** Add File:", 2),
        ("*** Add File: f\n+1\n\n+2", "", 4),
        ("*** Add File: f\n +1", "+1", 3),
        ("*** Delete File: f\n-x", "-x", 3),
        ("*** Add File: f\n*** Environment ID: x", "*** Environment ID: x", 3),
        ("\n*** Environment ID: x", "", 2),
    ],
)
def test_no_header_where_one_is_needed(body: str, bad: str, line: int) -> None:
    assert error(wrap(body)) == (f"'{bad}' {HEADERS}", line)


@pytest.mark.parametrize(
    ("body", "bad", "line"),
    [
        ("zz", "zz", 3),
        ("@@\nzz", "zz", 4),
        ("@@x", "@@x", 3),
        ("@@ a\n@@ b\n-c", "@@ b", 4),
        ("\t", "\t", 3),
        ("*** foo", "*** foo", 3),
        ("*** Move to: ", "*** Move to: ", 3),
        ("*** Move to: a\n*** Move to: b", "*** Move to: b", 4),
        ("@@\n*** Delete File: g  ", "*** Delete File: g", 4),
        ("*** Delete File:  \n+x", "*** Delete File:  ", 3),
    ],
)
def test_no_line_of_a_chunk(body: str, bad: str, line: int) -> None:
    sentence = f"Unexpected line found in update hunk: '{bad}'. {LINES}"
    assert error(update(body)) == (sentence, line)


@pytest.mark.parametrize(
    ("body", "bad", "line"),
    [
        ("-a\nzz", "zz", 4),
        ("-a\n@@x", "@@x", 4),
        ("-a\n*** Move to: g", "*** Move to: g", 4),
        ("\n*** Move to: g", "*** Move to: g", 4),
        ("-a\n*** End of File\n-b", "-b", 5),
        ("-a\n*** End of File\n\n  *** Add File: q\n+1", "  *** Add File: q", 6),
        ("-a\n*** End of File\n*** End of File", "*** End of File", 5),
        ("-a\n*** Environment ID: x", "*** Environment ID: x", 4),
        ("-a\n*** Begin Patch", "*** Begin Patch", 4),
    ],
)
def test_no_marker_where_a_chunk_should_begin(body: str, bad: str, line: int) -> None:
    sentence = f"Expected update hunk to start with a @@ context marker, got: '{bad}'"
    assert error(update(body)) == (sentence, line)


@pytest.mark.parametrize(
    ("text", "sentence", "line"),
    [
        (wrap("*** Update File: f"), "Update file hunk for path 'f' is empty", 2),
        (wrap("*** Update File: f\n*** Move to: g"), "Update file hunk for path 'f' is empty", 2),
        (update("*** End of File"), "Update file hunk for path 'f' is empty", 2),
        (
            wrap("*** Delete File: d\n*** Update File: f\n*** Add File: x"),
            "Update file hunk for path 'f' is empty",
            3,
        ),
        (update("@@"), EMPTY_CHUNK, 4),
        (update("@@ a\n*** End of File"), EMPTY_CHUNK, 4),
        (update("-a\n@@ b"), EMPTY_CHUNK, 5),
    ],
)
def test_something_is_missing(text: str, sentence: str, line: int) -> None:
    assert error(text) == (sentence, line)


def test_an_update_takes_indented_headers_for_context() -> None:
    assert chunks("-a\n  *** Delete File: d\n  *** End Patch") == (
        Chunk((drop("a"), keep(" *** Delete File: d"), keep(" *** End Patch"))),
    )


def test_outside_of_updates_headers_may_be_indented() -> None:
    patch = parse(wrap("  *** Add File: f\n+1\n\t*** Delete File: g \n *** Update File: h\n-x"))
    assert [hunk.path for hunk in patch.hunks] == ["f", "g", "h"]


def test_the_last_line_ends_the_patch_even_if_it_is_indented() -> None:
    assert parse("*** Begin Patch\n*** Update File: f\n-a\n  *** End Patch").hunks == (
        UpdateFile("f", (Chunk((drop("a"),)),)),
    )


@pytest.mark.parametrize("marker", ["@@", "@@ ", "@@   ", "@@\t", "@@\u00a0"])
def test_a_marker_without_context(marker: str) -> None:
    assert chunks(f"{marker}\n-a") == (Chunk((drop("a"),)),)


def test_context_keeps_its_indent_and_loses_trailing_blanks() -> None:
    assert chunks("@@   def f():  \n-a") == (Chunk((drop("a"),), "  def f():"),)


def test_empty_lines_are_empty_context() -> None:
    assert chunks("\n@@\n\n-a\n\n") == (
        Chunk((keep(""),)),
        Chunk((keep(""), drop("a"), keep(""), keep(""))),
    )


def test_blank_lines_may_follow_the_end_of_the_file() -> None:
    assert chunks("-a\n*** End of File \n\n  \n@@\n-b") == (
        Chunk((drop("a"),), None, True),
        Chunk((drop("b"),)),
    )


def test_two_carriage_returns_go_a_third_stays() -> None:
    assert parse(wrap("*** Add File: f\n+1\r2\r\n+3\r\r\n+4\r\r\r")).hunks == (
        AddFile("f", "1\r2\n3\n4\r\n"),
    )


def test_paths_keep_leading_and_lose_trailing_blanks() -> None:
    (hunk,) = parse(wrap("*** Add File:   a b \t")).hunks
    assert hunk.path == "  a b"


_TOKENS = st.sampled_from(
    [
        "*** Begin Patch",
        "*** End Patch",
        "*** Add File: a",
        "*** Delete File: b",
        "*** Update File: c",
        "*** Move to: d",
        "*** End of File",
        "*** Environment ID: e",
        "@@",
        "@@ x",
        "+x",
        "-y",
        " z",
        "",
        "  ",
        "zz",
        "<<EOF",
        "EOF",
    ]
)


@given(st.lists(_TOKENS, max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_any_text_is_a_patch_or_an_error_with_a_place_in_it(lines: list[str], end: str) -> None:
    problem = None
    try:
        patch = parse(end.join(["*** Begin Patch", *lines, "*** End Patch"]))
    except PatchSyntaxError as error:
        problem = error
    if problem is not None:
        assert 0 <= problem.line <= len(lines) + 2
        assert str(problem)
        return
    for hunk in patch.hunks:
        if isinstance(hunk, UpdateFile):
            assert hunk.chunks
            assert all(chunk.lines for chunk in hunk.chunks)
