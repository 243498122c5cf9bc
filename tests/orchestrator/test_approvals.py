"""Questions: time limits, hooks, and everything that is no yes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from handrail.orchestrator.approvals import (
    Answer,
    Choice,
    Kind,
    Question,
    Reviewers,
    Source,
    command_choices,
    retry_choices,
)

QUESTION = Question("c", Kind.COMMAND, ("ls",), "/", command_choices(with_rule=False))


class Silent:
    """Never answers."""

    def __init__(self) -> None:
        self.cancelled = False

    async def ask(self, question: Question) -> Answer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


class Broken:
    async def ask(self, question: Question) -> Answer:
        raise RuntimeError("no line")


class Yes:
    async def ask(self, question: Question) -> Answer:
        return Answer(Choice.APPROVE)


def test_no_answer_in_time_is_no() -> None:
    silent = Silent()
    ruling = asyncio.run(Reviewers(silent).put(QUESTION, 0.01))
    assert ruling.answer.choice is Choice.TIMED_OUT
    assert not ruling.answer.choice.approves
    assert silent.cancelled


def forged(choice: object, **members: object) -> Answer:
    """An answer whose members were not checked when it was made."""
    answer = Answer(Choice.APPROVE)
    for name, value in {"choice": choice, **members}.items():
        object.__setattr__(answer, name, value)
    return answer


@pytest.mark.parametrize(
    "wrong",
    [
        True,
        None,
        Choice.APPROVE,
        forged("approved"),
        forged(Choice.APPROVE, text=None),
        forged(Choice.APPROVE_WITH_RULE, prefix="touch"),
        forged(Choice.APPROVE_WITH_RULE, prefix=("touch", 5)),
    ],
)
def test_what_is_no_answer_is_no(wrong: Any) -> None:
    class Wrong:
        async def ask(self, question: Question) -> Answer:
            return wrong  # type: ignore[no-any-return]

    async def hook(question: Question) -> Answer | None:
        return wrong  # type: ignore[no-any-return]

    asked = [Reviewers(Wrong())]
    if wrong is not None:  # a hook without an opinion
        asked.append(Reviewers(Yes(), [hook]))
    for reviewers in asked:
        ruling = asyncio.run(reviewers.put(QUESTION, None))
        assert ruling.answer.choice is Choice.DENY
        assert "of an answer" in ruling.answer.text or "has to be an Answer" in ruling.answer.text


def test_an_approver_that_fails_is_no() -> None:
    ruling = asyncio.run(Reviewers(Broken()).put(QUESTION, None))
    assert ruling.answer.choice is Choice.DENY
    assert "no line" in ruling.answer.text


def test_nobody_to_ask_is_no() -> None:
    ruling = asyncio.run(Reviewers().put(QUESTION, None))
    assert (ruling.answer.choice, ruling.source) == (Choice.DENY, Source.CONFIG)


@pytest.mark.parametrize(
    ("opinion", "choice", "source"),
    [
        (None, Choice.APPROVE, Source.USER),
        (Answer(Choice.DENY, "not today"), Choice.DENY, Source.AUTOMATED),
        (Answer(Choice.APPROVE), Choice.APPROVE, Source.AUTOMATED),
    ],
)
def test_hooks_come_first(opinion: Answer | None, choice: Choice, source: Source) -> None:
    async def hook(question: Question) -> Answer | None:
        return opinion

    ruling = asyncio.run(Reviewers(Yes(), (hook,)).put(QUESTION, 5))
    assert (ruling.answer.choice, ruling.source) == (choice, source)


def test_what_is_offered() -> None:
    assert Choice.APPROVE_WITH_RULE not in command_choices(with_rule=False)
    narrow = retry_choices(free=False, with_grant=True, with_rule=True)
    assert narrow == (Choice.GRANT_AND_RERUN, Choice.DENY, Choice.ABORT)
    whole = retry_choices(free=True, with_grant=True, with_rule=True)
    assert whole.index(Choice.GRANT_AND_RERUN) < whole.index(Choice.APPROVE)
