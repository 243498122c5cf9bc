"""Approvers to choose from: a callback, a queue, a terminal, or the same answer always.

All answer one question at a time per caller and may be cancelled while they wait.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable

from handrail.orchestrator.approvals import Answer, Choice, Question

_WORDS = {
    Choice.APPROVE: "yes, this once",
    Choice.APPROVE_FOR_SESSION: "yes, and the same command for this session",
    Choice.APPROVE_WITH_RULE: "yes, and always for commands that start with",
    Choice.GRANT_AND_RERUN: "open just this and run it again in the sandbox:",
    Choice.HOST_RULE: "yes, and always for this host",
    Choice.DENY: "no, go on without it",
    Choice.ABORT: "no, and stop",
}
_KEYS = {
    Choice.APPROVE: "y",
    Choice.APPROVE_FOR_SESSION: "s",
    Choice.APPROVE_WITH_RULE: "a",
    Choice.GRANT_AND_RERUN: "g",
    Choice.HOST_RULE: "h",
    Choice.DENY: "n",
    Choice.ABORT: "q",
}


class FixedApprover:
    """Gives the same answer to everything."""

    def __init__(self, choice: Choice, text: str = "") -> None:
        self._answer = Answer(choice, text)

    async def ask(self, question: Question) -> Answer:
        return self._answer


class CallbackApprover:
    """Asks a function, plain or async; it may answer with a Choice, an Answer or a bool."""

    def __init__(
        self, ask: Callable[[Question], Answer | Choice | bool | Awaitable[Answer | Choice | bool]]
    ) -> None:
        self._ask = ask

    async def ask(self, question: Question) -> Answer:
        given = self._ask(question)
        if inspect.isawaitable(given):
            given = await given
        if isinstance(given, bool):
            given = Choice.APPROVE if given else Choice.DENY
        if isinstance(given, Choice):
            given = Answer(given)
        if not isinstance(given, Answer):
            raise TypeError(f"an approver answered with {type(given).__name__}, not an Answer")
        return given


class Pending:
    """A question in a queue."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def void(self) -> bool:
        """Nobody waits for the answer any more."""
        return self._answer.done()

    def answer(self, answer: Answer | Choice) -> None:
        """Answer it, once; later answers and those to a void question have no effect."""
        if not self._answer.done():
            self._answer.set_result(Answer(answer) if isinstance(answer, Choice) else answer)

    async def wait(self) -> Answer:
        return await self._answer


class QueueApprover:
    """Puts questions into a queue to be worked through: ``async for pending in approver``."""

    def __init__(self, limit: int = 64) -> None:
        self._queue: asyncio.Queue[Pending] = asyncio.Queue(limit)

    async def ask(self, question: Question) -> Answer:
        pending = Pending(question)
        await self._queue.put(pending)
        return await pending.wait()

    async def next(self) -> Pending:
        """The next question somebody still waits for."""
        while True:
            pending = await self._queue.get()
            if not pending.void:
                return pending

    async def __aiter__(self) -> AsyncIterator[Pending]:
        while True:
            yield await self.next()


class TerminalApprover:
    """Asks at a terminal, one question after the other.  ``reader`` and ``writer`` descriptors."""

    def __init__(self, reader: int = 0, writer: int = 2) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()

    async def ask(self, question: Question) -> Answer:
        async with self._turn:
            os.write(self._writer, prompt(question).encode("utf-8", "replace"))
            while True:
                line = await self._line()
                if line is None:
                    return Answer(Choice.DENY, "the terminal is gone")
                answer = read_answer(question, line)
                if answer is not None:
                    return answer
                os.write(self._writer, b"? ")

    async def _line(self) -> str | None:
        """One line, without holding a thread that could not be cancelled."""
        loop = asyncio.get_running_loop()
        data = bytearray()
        while b"\n" not in data:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._reader, _set, ready)
            try:
                await ready
            finally:
                loop.remove_reader(self._reader)
            try:
                piece = os.read(self._reader, 4096)
            except OSError:
                return None
            if not piece:
                return None
            data += piece
        return data.split(b"\n", 1)[0].decode("utf-8", "replace").strip()


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def prompt(question: Question) -> str:
    """The question as lines on a terminal; control characters are shown, not sent."""
    lines = ["", f"$ {_visible(shlex.join(question.argv))}", f"  in {_visible(question.cwd)}"]
    lines += [f"  changes {_visible(path)}" for path in question.paths]
    if question.reason:
        lines.append(f"  {_visible(question.reason)}")
    lines += [f"  note: {note}" for note in question.notes]
    for choice in question.choices:
        line = f"  [{_KEYS[choice]}] {_WORDS[choice]}"
        if choice is Choice.APPROVE_WITH_RULE and question.proposed_prefix:
            line += f" `{_visible(shlex.join(question.proposed_prefix))}`"
        if choice is Choice.GRANT_AND_RERUN and question.grant:
            line += f" {_visible(question.grant)}"
        lines.append(line)
    return "\n".join(lines) + "\n> "


def read_answer(question: Question, line: str) -> Answer | None:
    """The answer a line means: a key, and behind ``n`` or ``q`` a text; None: none of them."""
    key, _, text = line.partition(" ")
    for choice in question.choices:
        if _KEYS[choice] == key.lower():
            return Answer(choice, text.strip())
    return None


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
