"""The questions about hosts that one client is asked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from handrail.network.managed.start import NetworkQuestion
from handrail.server.host_questions import HostQuestions
from tests.support.coroutines import run


class Asked:
    """A connection that notes what its client is asked."""

    def __init__(self) -> None:
        self.notifier = SimpleNamespace(extended=False)
        self.requests: list[Any] = []

    def request(self, method: str, params: Any) -> tuple[int, asyncio.Future[Any]]:
        self.requests.append(params.request.host)
        return len(self.requests), asyncio.get_running_loop().create_future()

    def give_up(self, number: int) -> None:
        """Nothing waits here."""


def test_a_question_that_comes_while_its_session_is_resumed_is_asked_once() -> None:
    """The porter's question comes behind ``initialize``; ``initialized`` asks all that is open."""

    async def main() -> None:
        asked = Asked()
        questions = HostQuestions(asked)  # type: ignore[arg-type]
        child: Any = SimpleNamespace(key="p", spec=SimpleNamespace(network=None))
        first = NetworkQuestion(7, "https_connect", "a.example", 443, None, None, None)
        questions.ask(child, first)
        questions.ask(child, first)
        questions.ask(child, replace(first, number=8, host="b.example"))
        assert asked.requests == ["a.example", "b.example"]
        questions.withdrawn(7)
        questions.ask(child, first)
        assert asked.requests == ["a.example", "b.example", "a.example"]

    run(main())
