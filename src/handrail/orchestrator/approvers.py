"""Approvers to choose from: a callback, a queue, a terminal, or a fixed answer.

All answer one question at a time per caller and may be cancelled while they wait.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import termios
from collections.abc import AsyncIterator, Awaitable, Callable

from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.orchestrator.question_text import choice_text, command_line, effects, facts, visible

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
    """Gives the same answer to every question."""

    def __init__(self, choice: Choice, text: str = "") -> None:
        self._answer = Answer(choice, text)

    async def ask(self, question: Question) -> Answer:
        return self._answer


class CallbackApprover:
    """Calls a function, plain or async; it may answer with a Choice, an Answer or a bool."""

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
        """Whether the call that asked has been cancelled."""
        return self._answer.done()

    def answer(self, answer: Answer | Choice) -> None:
        """Answer it, once; later answers and those to a void question have no effect."""
        if not self._answer.done():
            self._answer.set_result(Answer(answer) if isinstance(answer, Choice) else answer)

    async def wait(self) -> Answer:
        return await self._answer


class QueueApprover:
    """Queues questions: ``async for pending in approver``."""

    def __init__(self, limit: int = 64) -> None:
        self._queue: asyncio.Queue[Pending] = asyncio.Queue(limit)

    async def ask(self, question: Question) -> Answer:
        pending = Pending(question)
        await self._queue.put(pending)
        return await pending.wait()

    async def next(self) -> Pending:
        """The next question that is not void."""
        while True:
            pending = await self._queue.get()
            if not pending.void:
                return pending

    async def __aiter__(self) -> AsyncIterator[Pending]:
        while True:
            yield await self.next()


class TerminalApprover:
    """Asks at a terminal, one question after the other.  ``reader`` and ``writer`` are fds."""

    def __init__(self, reader: int = 0, writer: int = 2) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()
        #: Read after the end of a line, while the same question was open.
        self._unread = bytearray()

    async def ask(self, question: Question) -> Answer:
        async with self._turn:
            self._forget_typed()
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
        """Read one line, without a thread that could not be cancelled."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._unread:
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
            self._unread += piece
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        return line.decode("utf-8", "replace").strip()

    def _forget_typed(self) -> None:
        """Drop what was typed before the question was shown: it is no answer to it."""
        self._unread.clear()
        try:
            termios.tcflush(self._reader, termios.TCIFLUSH)
        except termios.error:
            pass  # a pipe or a file: its content was written by a program, as answers


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def prompt(question: Question) -> str:
    """The question as lines on a terminal; control characters are shown, not sent."""
    lines = ["", f"$ {command_line(question.argv)}", f"  in {visible(question.cwd)}"]
    lines += [f"  changes {visible(path)}" for path in question.paths]
    # What a yes does is next to the choices: a long command scrolls the top out of sight.
    lines += [f"  {line}" for line in (*facts(question), *effects(question))]
    lines += [f"  [{_KEYS[choice]}] {choice_text(choice, question)}" for choice in question.choices]
    return "\n".join(lines) + "\n> "


def read_answer(question: Question, line: str) -> Answer | None:
    """Parse a line: a key, and after ``n`` or ``q`` a text; None if it is none of the keys."""
    key, _, text = line.partition(" ")
    for choice in question.choices:
        if _KEYS[choice] == key.lower():
            return Answer(choice, text.strip())
    return None
