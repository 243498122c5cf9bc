"""Patterns allow narrowly and deny widely."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.network.hosts import BadHost, canonical
from handrail.network.patterns import BadPattern, PatternSet, parse


def matches(pattern: str, host: str, port: int = 443, *, deny: bool = False) -> bool:
    return PatternSet([parse(pattern)], wide=deny).find(canonical(host), port) is not None


@pytest.mark.parametrize(
    ("pattern", "host", "allowed", "denied"),
    [
        ("ok.example", "ok.example", True, True),
        ("ok.example", "a.ok.example", False, False),
        (" OK.Example. ", "ok.example", True, True),
        ("*.ok.example", "a.ok.example", True, True),
        ("*.ok.example", "a.b.ok.example", True, True),
        ("*.ok.example", "ok.example", False, False),
        ("*.ok.example", "xok.example", False, False),
        ("**.ok.example", "ok.example", True, True),
        ("**.ok.example", "a.b.ok.example", True, True),
        ("**.ok.example", "xok.example", False, False),
        ("*", "ok.example", True, True),
        ("*", "11.22.33.44", True, True),
        ("ok*.example", "ok1.example", True, True),
        ("ok*.example", "ok.example", True, True),
        ("ok*.example", "ok1.evil.example", False, True),
        ("ok?.example", "ok1.example", True, True),
        ("ok?.example", "ok12.example", False, False),
        ("a?b.example", "a.b.example", False, True),
        ("*.*.example", "a.b.example", True, True),
        ("*.*.example", "b.example", False, False),
        ("**.x*.example", "x1.example", True, True),
        ("**.x*.example", "a.x1.example", True, True),
        ("a.*.example", "a.b.example", True, True),
        ("a.*.example", "a.b.c.example", False, True),
        ("11.22.33.*", "11.22.33.44", False, True),
        ("1*", "11.22.33.44", False, True),
        ("127.1", "127.0.0.1", True, True),
        ("::ffff:127.0.0.1", "127.0.0.1", True, True),
        ("0:0:0:0:0:0:0:1", "::1", True, True),
        ("[::1]", "::1", True, True),
        (".ok.example", "a.ok.example", False, False),
        (".ok.example", "ok.example", False, False),
        ("*.1.2.3.4", "1.2.3.4", False, False),
        ("256.1.1.1", "ok.example", False, False),
        ("bücher.example", "xn--bcher-kva.example", True, True),
        ("BÜCHER.example", "xn--bcher-kva.example", True, True),
        ("*.bücher.example", "a.xn--bcher-kva.example", True, True),
        ("bu\u0308cher.example", "xn--bcher-kva.example", True, True),
        ("bücher\u3002example", "xn--bcher-kva.example", True, True),
    ],
)
def test_what_a_pattern_matches(pattern: str, host: str, allowed: bool, denied: bool) -> None:
    assert (matches(pattern, host), matches(pattern, host, deny=True)) == (allowed, denied)


@pytest.mark.parametrize(
    ("pattern", "host", "port", "is_so"),
    [
        ("x.example:8080", "x.example", 8080, True),
        ("x.example:8080", "x.example", 80, False),
        ("*.x.example:443", "a.x.example", 443, True),
        ("*.x.example:443", "a.x.example", 80, False),
        ("*:22", "any.example", 22, True),
        ("*:22", "any.example", 23, False),
        ("[::1]:8080", "::1", 8080, True),
        ("[::1]:8080", "::1", 80, False),
        ("x.example.:8080", "x.example", 8080, True),
    ],
)
def test_a_port_holds_for_that_port_only(pattern: str, host: str, port: int, is_so: bool) -> None:
    assert matches(pattern, host, port) is is_so
    assert matches(pattern, host, port, deny=True) is is_so


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "  ",
        ".",
        "**",
        "**.",
        "*.",
        "***.x",
        "a.**.x",
        "**:443",
        "https://ok.example",
        "ok.example/",
        "ok.example/path",
        "11.22.33.0/24",
        "fd00::/8",
        "{a,b}.example",
        "[ab].example",
        "[1.2.3.4]",
        "[::1",
        "ok .example",
        "ok.example:0",
        "ok.example:",
        "ok.example:x",
        "ok.example:65536",
        "http:ok.example",
        "u@ok.example",
        "ok%2e.example",
        "bü*.example",
        "＊.example",
        "b\u2028x.example",
        "ü" * 60 + ".example",
        "a" * 261,
        "::zz",
    ],
)
def test_patterns_that_are_refused_name_themselves(pattern: str) -> None:
    with pytest.raises(BadPattern, match="invalid domain pattern"):
        parse(pattern)


def test_a_pattern_that_matches_nothing_is_told() -> None:
    texts = [".ok.example", "*.1.2.3.4", "a..b", "-a.example", "ok.example"]
    assert PatternSet(map(parse, texts), wide=False).warnings == texts[:4]


def test_many_stars_take_no_time() -> None:
    pattern = "a" + "*a" * 120 + "b.example"
    host = ".".join(["a" * 60] * 3) + ".example"
    assert not matches(pattern, host, deny=True)


@given(st.text("ab*?.", min_size=1, max_size=12), st.text("ab.", min_size=1, max_size=12))
def test_a_wide_glob_is_that_of_the_shell(pattern: str, name: str) -> None:
    try:
        host, parsed = canonical(name), parse(f"{pattern}x")
    except (BadHost, BadPattern):
        return
    if parsed.kind != "glob" or parsed.host.startswith("**."):
        return
    found = PatternSet([parsed], wide=True).find(host, 80) is not None
    assert found is fnmatch.fnmatchcase(host.text, parsed.host)


@given(st.text("ab*?.", min_size=1, max_size=12), st.text("ab.", min_size=1, max_size=12))
def test_what_a_pattern_allows_it_also_denies(pattern: str, name: str) -> None:
    try:
        host, parsed = canonical(name), parse(pattern)
    except (BadHost, BadPattern):
        return
    if PatternSet([parsed], wide=False).find(host, 80) is not None:
        assert PatternSet([parsed], wide=True).find(host, 80) is not None


@given(st.text(max_size=30))
def test_every_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        parsed = parse(text)
    except BadPattern:
        return
    assert parsed.host.isascii()
