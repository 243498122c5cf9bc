"""Open questions to the server: one for all connections of a process to one host and port.

A question is open until it is answered, its time is over or its process ends.  A connection that
gives up does not close it: tools retry while people think.  The next server gets all of them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from handrail.network.decide import Key, Target

#: Open questions of one process.
MOST_OPEN = 8
#: Hosts that one process may cause questions about.
MOST_HOSTS = 20
#: Added to the client's time, for the way there and back.
_GRACE_SECONDS = 5.0
#: Connections that come so soon after a question was asked belong to it, answered or not: tools
#: open several at once, and an answer may be there before the last of them.
_BURST_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question; ``reason`` None: there was no answer."""

    allow: bool
    reason: str | None = None
    #: A no that is called ``ask``.
    asks: bool = False


NO_ANSWER = Answer(allow=False)


class TooMany(Exception):
    """No further question may be asked."""


@dataclass(eq=False, slots=True)
class Question:
    """One open question."""

    number: int
    process: str
    target: Target
    begun: float
    future: asyncio.Future[Answer]
    timer: asyncio.TimerHandle | None = None
    about: dict[str, object] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """The question as the link has it."""
        return {
            "question": self.number,
            "process": self.process,
            "protocol": self.target.protocol,
            "host": self.target.host.text,
            "port": self.target.port,
            "method": self.target.method,
            **self.about,
        }


class Questions:
    """All open questions of the porter."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[Question], None],
        withdrawn: Callable[[Question, str], None],
        waited: Callable[[float], None],
        first: int,
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._withdrawn = withdrawn
        self._waited = waited
        self._next = first
        self._open: dict[int, Question] = {}
        self._by_target: dict[tuple[str, Key], Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Question]:
        """All open questions, the oldest first."""
        return list(self._open.values())

    def get(self, number: int) -> Question | None:
        """The open question of that number."""
        return self._open.get(number)

    def ask(
        self,
        process: str,
        target: Target,
        seconds: float,
        about: dict[str, object],
        *,
        burst: bool = True,
    ) -> asyncio.Future[Answer]:
        """The answer to come, of a question that is open or begins now; raises TooMany.

        ``burst``: or was begun a moment ago, for clients that do not remember their answers.
        """
        found = self._by_target.get((process, target.key))
        if found is not None and found.future.done() and (self._is_over(found) or not burst):
            found = None
        if found is None:
            if sum(one.process == process for one in self._open.values()) >= MOST_OPEN:
                raise TooMany
            found = Question(
                self._next,
                process,
                target,
                self._loop.time(),
                self._loop.create_future(),
                about=about,
            )
            self._next += 1
            self._open[found.number] = self._by_target[process, target.key] = found
            found.timer = self._loop.call_later(
                seconds + _GRACE_SECONDS, self._withdraw, found, "timeout"
            )
            self._tell(found)
        return found.future

    def answer(self, number: int, answer: Answer) -> Question | None:
        """Close a question; None for one that is not open: late, doubled or invented."""
        question = self._open.get(number)
        if question is None:
            return None
        self._close(question, answer)
        return question

    def drop(self, process: str) -> None:
        """Withdraw the questions of a process that has ended."""
        for question in [one for one in self._open.values() if one.process == process]:
            self._withdraw(question, "process")
        for question in [one for one in self._by_target.values() if one.process == process]:
            self._forget(question)

    def _withdraw(self, question: Question, why: str) -> None:
        self._close(question, NO_ANSWER)
        self._withdrawn(question, why)

    def _is_over(self, question: Question) -> bool:
        return self._loop.time() >= question.begun + _BURST_SECONDS

    def _forget(self, question: Question) -> None:
        key = (question.process, question.target.key)
        if self._by_target.get(key) is question:
            del self._by_target[key]

    def _close(self, question: Question, answer: Answer) -> None:
        del self._open[question.number]
        if question.timer is not None:
            question.timer.cancel()
        left = question.begun + _BURST_SECONDS - self._loop.time()
        self._loop.call_later(max(0.0, left), self._forget, question)
        self._waited(self._loop.time() - question.begun)
        question.future.set_result(answer)


def read_answer(fields: dict[str, object]) -> Answer:
    """An answer of the server; anything odd is a no."""
    if fields.get("allow") is True:
        return Answer(allow=True)
    reason = fields.get("reason")
    return Answer(
        allow=False,
        reason=reason if isinstance(reason, str) else None,
        asks=fields.get("label") == "ask",
    )
