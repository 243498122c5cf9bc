from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.policy.lenient_script_reader import glimpses
from handrail.policy.strict_script_reader import plain_commands


def seen(script: str) -> list[str]:
    return [
        " ".join("?" if word is None else word for word in glimpse.words)
        for glimpse in glimpses(script).commands
    ]


@pytest.mark.parametrize(
    "script",
    [
        "P x > /dev/null", "P x 2>&1", "P >o x", "P <i >o x", ">o P x", "A=1 P x", "A=$(y) P x",
        "(P x)", "{ P x; }", "! P x", "P x &", "P x | tee o", "a && P x", "P x; if", "P x\n)",
        "if a; then P x; fi", "while P x; do :; done", "for i in a; do P x; done",
        "case a in *) P x;; esac", "f() { P x; }", "function f { P x; }", "echo $(P x)",
        "echo `P x`", 'echo "$(P x)"', "cat <(P x)", "A=$(P x)", "export A=$(P x)",
        "cat <<E\n$(P x)\nE", "echo ${A:-$(P x)}", "[[ -n $(P x) ]]", "\\P x", '"P" x', "'P' x",
        "P'' x", "$'P' x", "$'\\x50' x", "P\\\n x", "P x\\\n", "P \\x", "P 'x'", 'P "x"', "P $'x'",
        'P $"x"', "P x # y", "select a in b; do P x; done", "cat <<-E | P x\nE",
        "é=1 P x", "x漢+=$(y) P x", "x漢 y; P x", "“ y; P x", "ą() { P x; }",
        "for 漢 in a; do P x; done",
    ],
)  # fmt: skip
def test_a_command_is_seen_however_it_is_wrapped(script: str) -> None:
    assert "P x" in seen(script)


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("P $X y", ["P ? y"]),
        ("P *.c", ["P ?"]),
        ("P {a,b}", ["P ?", "P a b"]),
        ("P {}", ["P {}"]),
        ('P "$X"y', ["P ?"]),
        ('P "a\\"b\\$c"', ['P a"b$c']),
        ("P a\\ b", ["P a b"]),
        ("git pu\\\nsh", ["git push"]),
        ("P\\\nQ", ["PQ"]),
        ("P $'a\\tb\\u00e9\\101'", ["P a\tbéA"]),
        ("P <<E -f\nE", ["P -f"]),
        ("export A=1 B", ["export A=1 B"]),
        ("unset A", ["unset A"]),
        ("[ -f x ]", ["[ ?"]),
        ("# P x", []),
        ("echo 'P x'", ["echo P x"]),
    ],
)
def test_words_are_read_as_far_as_they_can_be_known(script: str, commands: list[str]) -> None:
    assert seen(script) == commands


def test_text_fed_by_the_script_itself_is_kept() -> None:
    assert glimpses("sh <<E\nP x\nE").commands[0].stdin == "P x\n"
    assert glimpses("sh <<< 'P x'").commands[0].stdin == "P x"
    assert glimpses("sh < file").commands[0].stdin is None


@pytest.mark.parametrize("script", ["$CMD x", "P x; if", "{P,x}", "a\0b", '"open'])
def test_hidden_commands_make_the_picture_unclear(script: str) -> None:
    assert not glimpses(script).clear


@settings(deadline=None)
@given(st.text(alphabet="Px $(){}<>|&;'\"\\\n*=#`!", max_size=30))
def test_whatever_is_plain_is_seen(script: str) -> None:
    commands = plain_commands(script)
    found = [glimpse.words for glimpse in glimpses(script).commands]
    assert commands is None or list(commands) == found
