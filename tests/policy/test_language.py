from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.policy.examples import split_words
from handrail.policy.language import RulesFileError, read_statements
from handrail.policy.load import parse_rules
from handrail.policy.rule_statements import RuleError, normal_host
from handrail.policy.rules import Decision, Policy, Sandbox


def test_every_rule_knows_its_line() -> None:
    text = 'def f(t):\n    prefix_rule([t])\n\nf("a")\nprefix_rule(\n    ["b"],\n)\n'
    rules = read_statements(text, "my file.rules").rules
    assert [(rule.first, str(rule.source)) for rule in rules] == [
        ("a", "my file.rules:2"),
        ("b", "my file.rules:5"),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\nprefix_rule(", 2),
        ("\nprefix_rule([])", 2),
        ('prefix_rule(("a",))', 1),
        ('prefix_rule("a")', 1),
        ('prefix_rule(["a", ("b",)])', 1),
        ('prefix_rule(["a", ["b", ["c"]]])', 1),
        ('prefix_rule(["a", 1])', 1),
        ('prefix_rule(["a"], decision=None)', 1),
        ('prefix_rule(["a"], "deny")', 1),
        ('prefix_rule(["a"], justification=" ")', 1),
        ('prefix_rule(["a"], justification=None)', 1),
        ('prefix_rule(["a"], match=None)', 1),
        ('prefix_rule(["a"], match="a")', 1),
        ('prefix_rule(["a"], match=[("a",)])', 1),
        ('prefix_rule(["a"], match=[""])', 1),
        ('prefix_rule(["a"], match=["# b"])', 1),
        ('prefix_rule(["a"], match=["a \'"])', 1),
        ('prefix_rule(["a"], sandbox="on")', 1),
        ('prefix_rule(["a"], "forbidden", sandbox="off")', 1),
        ('prefix_rule(["a"], other=1)', 1),
        ("prefix_rule()", 1),
        ('host_executable("a/b", [])', 1),
        ('host_executable("", [])', 1),
        ('host_executable("a", ["a"])', 1),
        ('host_executable("a", ["/b"])', 1),
        ('host_executable("a", [1])', 1),
        ('host_executable("a", ("/a",))', 1),
        ('network_rule("a.com", "http")', 1),
        ('network_rule("a.com", "ftp", "allow")', 1),
        ('network_rule("a.com", "http", "ask")', 1),
        ('load("x.rules", "y")', 1),
        ("import os", 1),
        ("while True: pass", 1),
        ('print("x")', 1),
        ("_native(1)", 1),
        ('\n\nfail("boom")', 3),
        ("def f(n): return f(n)\nf(1)", 1),
    ],
)
def test_a_mistake_is_reported_with_its_line(text: str, line: int) -> None:
    with pytest.raises(RulesFileError) as caught:
        read_statements(text, "r.rules")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"r.rules:{line}")
    assert "prelude" not in str(caught.value)


def test_a_file_that_takes_too_long_is_given_up() -> None:
    loop = "for a in range(100000):\n  for b in range(100000):\n    x = a\n"
    with pytest.raises(RulesFileError, match="too long"):
        read_statements(loop, "r.rules")


def test_the_language_is_starlark() -> None:
    text = """
verbs = ["add", "log"] + ["show"]
def rule(verb, **more):
    prefix_rule(["git", verb], **more)
for verb in verbs:
    rule(verb, decision="prompt" if verb == "add" else "allow")
[prefix_rule([f"{name}-x", [v for v in "ab".elems()]]) for name in ["m", "n"]]
host_executable(name="git", paths=["/usr/bin/git", "/usr/bin//git"])
rule
"""
    policy = parse_rules(text, "r")
    assert [str(rule) for rule in policy.rules] == [
        "git add", "git log", "git show", "m-x a|b", "n-x a|b",
    ]  # fmt: skip
    assert policy.rules[0].decision is Decision.PROMPT
    assert policy.hosts["git"].paths == ("/usr/bin/git",)


def test_sandbox_is_a_question_of_its_own() -> None:
    text = (
        'prefix_rule(["a"])\nprefix_rule(["b"], sandbox="keep")\nprefix_rule(["c"], sandbox="off")'
    )
    assert [rule.sandbox for rule in parse_rules(text, "r").rules] == [
        None,
        Sandbox.KEEP,
        Sandbox.OFF,
    ]


@pytest.mark.parametrize(
    "text",
    [
        'prefix_rule(["a"], match=["b"])',
        'prefix_rule(["a"], not_match=["a b"])',
        'prefix_rule(["a"], match=["b"])\nprefix_rule(["b"])',
        'prefix_rule(["a"], match=["/x/a"])\nhost_executable("a", ["/y/a"])',
        'prefix_rule([["a", "b"]], match=["a"], not_match=["b"])',
    ],
)
def test_an_example_that_does_not_hold_breaks_the_file(text: str) -> None:
    with pytest.raises(RulesFileError, match=r"r:1: (not_)?match example"):
        parse_rules(text, "r")


@pytest.mark.parametrize(
    "text",
    [
        'prefix_rule([["a", "b"]], match=["a x", ["b"]], not_match=["c", "ax"])',
        'prefix_rule(["a"], match=["/usr/bin/a", "x/a"])',
        'prefix_rule(["a"], not_match=["/x/a"])\nhost_executable("a", ["/y/a"])',
        'prefix_rule(["a", "b c"], match=["a b\\\\ c # d", "a \'b c\'"])',
        'prefix_rule(["a"], match=[], not_match=[])',
    ],
)
def test_examples_that_hold_are_fine(text: str) -> None:
    assert parse_rules(text, "r").rules


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a  b\tc\nd", ("a", "b", "c", "d")),
        ("a 'b c'\"d e\"f", ("a", "b cd ef")),
        ('"\\$\\`\\"\\\\\\n"', ('$`"\\\\n',)),
        ("a\\\nb \\\n c", ("ab", "c")),
        ("'' \"\"", ("", "")),
        ("a#b # c\nd", ("a#b", "d")),
        ("a;b&&c|$d", ("a;b&&c|$d",)),
        ("", ()),
        ("'a", None),
        ('"a', None),
        ("a\\", None),
    ],
)
def test_words_are_split_as_a_shell_does(text: str, words: tuple[str, ...] | None) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("x.com", "x.com"), (" X.com.. ", "x.com"), ("x.com:443", "x.com"), ("[::1]:80", "::1"),
        ("[::1]", "::1"), ("::1", "::1"), ("1.2.3.4:80", "1.2.3.4"), ("x.com:a", "x.com:a"),
    ],
)  # fmt: skip
def test_hosts_are_normalised(text: str, host: str) -> None:
    assert normal_host(text) == host


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "https://x.com", "x.com/", "x?y", "x#y", "*", "*.x", "a b", "[::1", "[::1]x",
     "[::1]:", "[]"],
)  # fmt: skip
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(RuleError):
        normal_host(text)


@settings(deadline=None)
@given(st.text(alphabet='prefix_rule(["a"], \'\n#)=:', max_size=40))
def test_any_text_is_rules_or_a_mistake(text: str) -> None:
    with suppress(RulesFileError):
        assert isinstance(parse_rules(text, "r"), Policy)
