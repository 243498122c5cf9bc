"""Finding lines, strictly first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.patch.seek import Haystack, Level, Match


def test_each_level_is_tried_over_the_whole_file_first() -> None:
    lines = ["a\u2013b", "  a-b", "a-b  ", "a-b"]
    for count, level in ((4, Level.EXACT), (3, Level.TRAILING), (2, Level.AROUND)):
        assert Haystack(lines[:count]).find(["a-b"], 0) == Match(count - 1, level)
    assert Haystack(lines[:1]).find(["a-b"], 0) == Match(0, Level.TYPOGRAPHIC)


def test_within_a_level_the_first_place_wins_and_others_are_noticed() -> None:
    haystack = Haystack(["x", "a", "b", "a", "b"])
    assert haystack.find(["a", "b"], 0) == Match(1, ambiguous=True)
    assert haystack.find(["a", "b"], 2) == Match(3)
    assert haystack.find(["a", "b"], 4) is None


def test_the_end_is_the_only_place_if_asked_for() -> None:
    haystack = Haystack(["a", "b", "a"])
    assert haystack.find(["a"], 0, at_end=True) == Match(2)
    assert haystack.find(["b"], 0, at_end=True) is None
    assert haystack.find(["a"], 3, at_end=True) is None


def test_an_empty_block_is_right_here() -> None:
    assert Haystack(["a"]).find([], 1, at_end=True) == Match(1)


def test_a_block_longer_than_the_file_is_not_found() -> None:
    assert Haystack(["a"]).find(["a", "b"], 0) is None


@pytest.mark.parametrize(
    ("fancy", "simple"),
    [
        *((chr(code), "-") for code in (*range(0x2010, 0x2016), 0x2212)),
        *((chr(code), "'") for code in range(0x2018, 0x201C)),
        *((chr(code), '"') for code in range(0x201C, 0x2020)),
        *((chr(code), " ") for code in (0xA0, *range(0x2002, 0x200B), 0x202F, 0x205F, 0x3000)),
    ],
)
def test_typographic_characters_count_as_their_plain_ones(fancy: str, simple: str) -> None:
    match = Haystack([f"x{fancy}y"]).find([f"x{simple}y"], 0)
    assert match == Match(0, Level.TYPOGRAPHIC)


@pytest.mark.parametrize("other", ["\u00ad", "\u2000", "\u2001", "\u2016", "\u200b", "\u00b4", "`"])
def test_their_neighbours_do_not(other: str) -> None:
    assert all(Haystack([f"x{other}y"]).find([f"x{p}y"], 0) is None for p in "-'\" ")


@pytest.mark.parametrize("blank", ["\t", "\x0b", "\x0c", "\x85", "\u1680", "\u2000", "\u2028"])
def test_white_space_at_the_ends(blank: str) -> None:
    assert Haystack([f"{blank}a{blank}"]).find(["a"], 0) == Match(0, Level.AROUND)


@pytest.mark.parametrize("text", ["\x1c", "\x1f", "\u180e", "\u200b", "\ufeff"])
def test_what_only_looks_like_white_space(text: str) -> None:
    assert Haystack([f"a{text}"]).find(["a"], 0) is None


@given(st.lists(st.sampled_from("ab "), max_size=12), st.data())
def test_exact_search_is_the_naive_one(lines: list[str], data: st.DataObject) -> None:
    block = data.draw(st.lists(st.sampled_from("ab "), min_size=1, max_size=3))
    start = data.draw(st.integers(0, len(lines)))
    naive = [i for i in range(start, len(lines)) if lines[i : i + len(block)] == block]
    match = Haystack(lines).find(block, start)
    if naive:
        assert match == Match(naive[0], ambiguous=len(naive) > 1)
    else:
        assert match is None or match.level is not Level.EXACT
