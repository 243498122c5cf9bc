"""``LineSplitter``: whole lines of each stream, whatever the pieces are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail import Line
from handrail.executor.base import OutputEvent, OutputKind
from handrail.workspace.output import lines as module
from handrail.workspace.output.lines import LinePart, LineSplitter

OUT, ERR = OutputKind.STDOUT, OutputKind.STDERR


def split(*pieces: tuple[OutputKind, bytes] | tuple[OutputKind, bytes, int]) -> list[Line]:
    splitter = LineSplitter()
    lines: list[Iterable[Line]] = []
    for number, (kind, data, *omitted) in enumerate(pieces, 1):
        lines += splitter.add(OutputEvent(kind, data, number, *omitted))
    return [*chain.from_iterable((*lines, *splitter.end()))]


def test_each_stream_keeps_its_unfinished_line() -> None:
    assert split((OUT, b"a"), (ERR, b"x\ny"), (OUT, b"b\n"), (ERR, b"z")) == [
        Line("stderr", "x"),
        Line("stdout", "ab"),
        Line("stderr", "yz"),
    ]


def test_the_lines_of_a_terminal() -> None:
    assert split((OUT, b"a\r"), (OUT, b"\nb\rc\r\n\r\n")) == [
        Line("stdout", "a"),
        Line("stdout", "b\rc"),
        Line("stdout", ""),
    ]


def test_a_gap_is_a_line_and_ends_those_before() -> None:
    assert split((OUT, b"begun"), (OUT, b"d\n", 12)) == [
        Line("stdout", "begun"),
        Line("gap", "[12 bytes of output were not kept]"),
        Line("stdout", "d"),
    ]


def test_a_line_without_an_end_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 4)
    lines = split((OUT, b"123"), (ERR, b"x\n"), (OUT, b"456\r"), (OUT, b"\n7890"), (OUT, b"1"))
    assert lines == [
        Line("stderr", "x"),
        LinePart("stdout", "123456"),
        Line("stdout", ""),
        LinePart("stdout", "78901"),
    ]
    assert [line.complete for line in lines] == [True, False, True, False]
    assert [line.text for line in split((OUT, b"1234"), (OUT, b"5\n6"))] == ["12345", "6"]


def test_memory_is_bounded_without_a_line_end() -> None:
    splitter, longest = LineSplitter(), 0
    for number in range(64):
        for block in splitter.add(OutputEvent(OUT, bytes(1 << 20), number)):
            longest = max(longest, *(len(line.text) for line in block))
    assert longest == module.LONGEST_LINE + (1 << 20)
    assert sum(len(line.text) for block in splitter.end() for line in block) < 9 << 20


def test_a_line_has_names() -> None:
    (line,) = split((OUT, b"a\n"))
    assert (line.stream, line.text) == ("stdout", "a")
    stream, text = line
    assert (stream, text) == ("stdout", "a")


@given(st.text(alphabet="aä€😀\n", max_size=60), st.lists(st.integers(0, 200), max_size=20))
def test_pieces_do_not_matter(text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [(OUT, data[a:b]) for a, b in pairwise(edges)]
    expected = text.removesuffix("\n").split("\n") if text else []
    assert [line.text for line in split(*pieces)] == expected
