"""The pattern language, against what a person reads in each pattern."""

from __future__ import annotations

import pytest

from handrail.glob_pattern import MOST_CHOICES, as_text, escape, translate

#: A pattern, what it matches, what it does not.
READ = [
    # One character is one of UTF-8, not one byte, and a byte that is none is one, too.
    ("?.env", "é.env 😀.env a.env", "ab.env éa.env"),
    ("[éa].env", "é.env a.env", "è.env"),
    ("[а-я].env", "ж.env", "a.env"),
    ("[!a].env", "é.env b.env", "a.env /.env"),
    # A closing bracket that comes first is part of the set.
    ("[]a]x", "]x ax", "bx"),
    ("[!]a]x", "bx éx", "]x ax"),
    ("[a&&b~^]x", "ax &x ~x ^x", "cx"),
    # Each choice means what it would mean alone.
    ("{**/*.env,**/*.pem}", "a.env d/a.pem d/e/a.env", "a.txt d/a.txt"),
    ("{a,{b,c}/**}/k", "a/k b/k c/d/k", "k d/k"),
    ("{./a,b/}", "a b", "c"),
    ("a/{b,}/c", "a/c a/b/c", "a/d/c"),
    ("x{,.bak}", "x x.bak", "x.b"),
    ("[{]a,b}", "{a,b}", "a b"),
    ("{[,],x}y", ",y xy", "y"),
    (r"\{a,b}", "{a,b}", "a b"),
    ("{a}*", "ab", "{a}"),
]


@pytest.mark.parametrize(("pattern", "matched", "others"), READ)
def test_what_a_pattern_matches(pattern: str, matched: str, others: str) -> None:
    matcher = translate(pattern)
    assert [name for name in matched.split() if not matcher.match(name)] == []
    assert [name for name in others.split() if matcher.match(name)] == []


@pytest.mark.parametrize("pattern", ["?.env", "*.env", "[!a].env"])
def test_a_name_that_is_no_text_has_characters(pattern: str) -> None:
    assert translate(pattern).match(as_text(b"\xff.env"))


@pytest.mark.parametrize("pattern", ["k{1,2", "{a,{b}", "[z-a]", "[[:alpha:]]*", "[![:digit:]]"])
def test_what_would_match_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="the glob pattern"):
        translate(pattern)


def test_choices_have_an_end() -> None:
    translate("{a,b}" * (MOST_CHOICES.bit_length() - 1))
    with pytest.raises(ValueError, match="choices"):
        translate("{a,b}" * 40)


@pytest.mark.parametrize("name", ["a{b,c}[d]*?", "\\*", "]", "}", "{", "é[", "[!a]"])
def test_an_escaped_name_matches_itself_alone(name: str) -> None:
    matcher = translate(escape(name))
    assert matcher.match(name)
    assert not matcher.match(name + "x")
