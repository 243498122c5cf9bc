"""Patterns in a stream: the same ends as ``re`` finds, in linear time."""

from __future__ import annotations

import random
import re

import pytest

from handrail.process.linear_regex import PatternRefused, Search

PATTERNS = (
    r"a+b", r"\b2\b", r"^x", r"x$", r"(ab|a)c?", r"[^a]b", r"a{2,3}b", r"(a*)*b", r"\w+ \d",
    r"a.c", r"\Bb", r"a?", r"a*?b", r"\Z", r"\Ab", r"(^|b)a$", r"(?:a|b)+2", r"\s\S", r"[a-b]{2}x",
)  # fmt: skip


def end_of_first(pattern: str, text: bytes, pieces: int = 1) -> int | None:
    search = Search(pattern)
    size = max(1, len(text) // pieces)
    for at in range(0, len(text), size):
        found = search.feed(text[at : at + size])
        if found is not None:
            return at + found
    return len(text) if search.ends_here() else None


def by_re(pattern: str, text: bytes) -> int | None:
    """The smallest end of any match, by asking for each end in turn."""
    for end in range(len(text) + 1):
        exact = re.compile(b"(?:%b)(?<=\\A(?s:.{%d}))" % (pattern.encode(), end), re.MULTILINE)
        if any(exact.match(text, begin) for begin in range(end + 1)):
            return end
    return None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_first_end_is_the_one_of_re(pattern: str) -> None:
    rng = random.Random(pattern)
    for _ in range(150):
        text = bytes(rng.choice(b"aabbc x2\n") for _ in range(rng.randint(0, 8)))
        expected = by_re(pattern, text)
        assert end_of_first(pattern, text) == expected, text
        assert end_of_first(pattern, text, pieces=3) == expected, text


def test_text_beyond_ascii_and_case() -> None:
    assert end_of_first("grün|blau", "das ist grün!".encode()) == len("das ist grün".encode())
    assert end_of_first("(?i)Ready", b"now rEADY") == 9
    assert end_of_first("(?s)a.b", b"xa\nb") == 4
    assert end_of_first("[^x]", b"\xff") == 1


@pytest.mark.parametrize(
    "pattern",
    [r"(a)\1", r"(?=a)b", r"(?<!a)b", "(", "(?i:a)", "(a{100}){100}", "x" * 5000, r"a++", "(?>a)"],
)
def test_what_cannot_be_looked_for_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        Search(pattern)


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$", r"(.*)*x", r"a*a*a*a*a*b"])
def test_patterns_that_take_re_forever(pattern: str) -> None:
    # Each byte is one step; with backtracking this would not end in our lifetime.
    assert Search(pattern).feed(b"a" * 200_000) is None


def test_what_is_remembered_is_bounded() -> None:
    search = Search("(a|b)*a(a|b){12}c")
    rng = random.Random(1)
    search.feed(bytes(rng.choice(b"ab") for _ in range(20_000)))
    assert len(search._places) <= 512
    assert search.feed(b"aaaaaaaaaaaaaac") is None
    assert search.ends_here()


def test_after_a_hole_nothing_is_joined() -> None:
    search = Search("ab")
    assert search.feed(b"a") is None
    search.reset()
    assert search.feed(b"bb") is None
    assert search.feed(b"ab ") == 2
