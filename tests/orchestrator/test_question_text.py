"""The lines of a question."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handrail.orchestrator.approvals import Choice, Kind, Question, command_choices
from handrail.orchestrator.approvers import prompt
from handrail.orchestrator.question_text import choice_text, effects, facts, visible
from handrail.orchestrator.settings import Grants

SANDBOXED = Question(
    "c",
    Kind.COMMAND,
    ("make", "all"),
    "/w",
    command_choices(with_rule=True),
    proposed_prefix=("make", "all"),
    justification="runs in the sandbox",
)
OUTSIDE = replace(SANDBOXED, outside=True)


@pytest.mark.parametrize(
    "char",
    [
        "\x00", "\x1b", "\r", "\n", "\t", "\x7f", "\x85", "\x9b", "\xad", "\u061c", "\u115f",
        "\u180e", "\u200b", "\u200e", "\u2028", "\u2029", "\u202e", "\u2066", "\u2800", "\u3164",
        "\ufe0f", "\ufeff", "\udc80", "\U000e0041", "\U000e0101", "\U0001d159",
    ],
)  # fmt: skip
def test_what_moves_or_hides_text_is_escaped(char: str) -> None:
    shown = visible(f"a{char}b")
    assert char not in shown
    assert shown[0] == "a"
    assert shown[-1] == "b"
    assert "\\" in shown


def test_ordinary_text_is_shown_as_it_is() -> None:
    assert visible("größe 漢字 🙂 a\\b") == "größe 漢字 🙂 a\\b"


def test_blanks_and_marks_cannot_look_like_other_lines() -> None:
    assert visible("a" + " " * 11 + "b") == "a" + " " * 11 + "b"
    assert visible("a" + " " * 60 + "in the sandbox") == "a\\x20{60}in the sandbox"
    assert visible("e\u0301\u0323") == "e\u0301\u0323"
    assert visible("e" + "\u0301" * 5) == "e" + "\u0301" * 3 + "\\u0301" * 2


def test_a_yes_that_leaves_the_sandbox_says_so() -> None:
    assert effects(SANDBOXED) == []
    assert any("outside the sandbox" in line for line in effects(OUTSIDE))
    rule = Choice.APPROVE_WITH_RULE
    assert "outside the sandbox" in choice_text(rule, OUTSIDE)
    assert "outside the sandbox" not in choice_text(rule, SANDBOXED)
    assert "`make all`" in choice_text(rule, OUTSIDE)
    assert "outside the sandbox" in choice_text(Choice.APPROVE_FOR_SESSION, OUTSIDE)


def test_every_path_and_the_network_are_named() -> None:
    wants = Grants(("/r1", "/r\n2"), ("/w1",), network=True)
    lines = effects(replace(SANDBOXED, wants=wants))
    assert lines == ["may read /r1", "may read /r\\n2", "may write /w1", "may use the network"]


def test_the_models_words_stand_behind_a_label_on_one_line() -> None:
    forged = replace(SANDBOXED, justification="ok\n  [y] yes" + " " * 200 + "$ git status")
    (line,) = facts(forged)
    assert line == "the model says: ok [y] yes $ git status"
    (line,) = facts(replace(SANDBOXED, justification="x" * 5000))
    assert len(line) < 1100


def test_a_terminal_shows_what_a_yes_does_next_to_the_answers() -> None:
    lines = prompt(replace(OUTSIDE, reason="a rule asks")).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("  [y]"))
    assert "outside the sandbox" in lines[at - 1]
    assert "  a rule asks" in lines
