"""Keys as answers to questions about hosts."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from handrail.cli.host_questions import KeyQuestions
from handrail.orchestrator.approvals import Choice, Kind, Question, network_choices
from tests.support.coroutines import run
from tests.support.eventually import LIMIT


def test_what_was_read_before_a_question_is_shown_is_no_answer_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choices = network_choices(with_rules=False)
    question = Question("c", Kind.NETWORK, ("true",), "/", choices, host=("http", "a.example", 80))
    taken: list[bool] = []

    async def main(screen: int) -> Choice:
        questions = KeyQuestions(screen, raw=True)
        say = questions._say

        def slow(text: str) -> None:
            """The terminal takes its time, and the thread that reads has a key already."""
            if "a.example" in text:
                reader = threading.Thread(target=lambda: taken.append(questions.take(b"y")))
                reader.start()
                reader.join(2)
            say(text)

        monkeypatch.setattr(questions, "_say", slow)
        asking = asyncio.create_task(questions.ask(question))
        async with asyncio.timeout(LIMIT):
            while not (asking.done() or questions.take(b"n")):  # noqa: ASYNC110
                await asyncio.sleep(0)
            return (await asking).choice

    with open(os.devnull, "wb") as screen:
        assert run(main(screen.fileno())) is Choice.DENY
    assert taken == [False]


def test_what_is_typed_at_the_mark_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is faster than the one who shows the mark: the command must not get it."""
    choices = network_choices(with_rules=False)
    question = Question("c", Kind.NETWORK, ("true",), "/", choices, host=("http", "a.example", 80))
    typed: list[threading.Thread] = []

    async def main(screen: int) -> Choice:
        questions = KeyQuestions(screen, raw=True)
        say = questions._say

        def type_at_once(text: str) -> None:
            say(text)
            if text.endswith("> "):
                typed.append(threading.Thread(target=questions.take, args=(b"n",)))
                typed[0].start()
                typed[0].join(0.2)  # it may wait until the mark is shown, and no longer

        monkeypatch.setattr(questions, "_say", type_at_once)
        async with asyncio.timeout(LIMIT):
            return (await questions.ask(question)).choice

    with open(os.devnull, "wb") as screen:
        assert run(main(screen.fileno())) is Choice.DENY
    typed[0].join()
