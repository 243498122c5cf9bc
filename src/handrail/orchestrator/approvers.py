"""Approvers to choose from: a callback, a list, a queue, a terminal, or a fixed answer.

All answer one question at a time per caller and may be cancelled while they wait.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
import termios
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from handrail.errors import UsageError
from handrail.futures import set_done
from handrail.name_hints import NamesChecked
from handrail.orchestrator.approvals import Answer, Approver, Choice, Kind, Question
from handrail.orchestrator.question_text import choice_text, command_line, effects, facts, visible
from handrail.policy.proposals import is_too_broad
from handrail.policy.strict_script_reader import split

#: A function that decides; True and False are yes and no, this once.
Callback: TypeAlias = Callable[
    [Question], Answer | Choice | bool | Awaitable[Answer | Choice | bool]
]
#: What is taken as an approver.
AnyApprover: TypeAlias = Approver | Callback

_KEYS = {
    Choice.APPROVE: "y",
    Choice.APPROVE_FOR_SESSION: "s",
    Choice.APPROVE_WITH_RULE: "a",
    Choice.GRANT_AND_RERUN: "g",
    Choice.HOST_RULE: "h",
    Choice.DENY: "n",
    Choice.DENY_FOR_SESSION: "d",
    Choice.HOST_DENY_RULE: "x",
    Choice.ABORT: "q",
}


class DenyAllApprover(NamesChecked):
    """Says no to every question; the model reads ``text``."""

    def __init__(self, text: str = "") -> None:
        self._answer = Answer(Choice.DENY, text)

    async def ask(self, question: Question) -> Answer:
        """Say no; raises nothing."""
        return self._answer


class AllowListApprover(NamesChecked):
    """Says yes to commands that start with one of ``prefixes``, such as ``"npm install"``.

    Each command of a script has to be on the list, and has to be read word by word: a script with
    a variable or a redirection is not.  ``outside``: also to runs that leave the sandbox or get
    more than it allows.  Other questions go to ``otherwise``; without it the answer is no.
    Raises UsageError for a prefix that would allow almost anything.
    """

    def __init__(
        self,
        prefixes: Iterable[str | Sequence[str]],
        *,
        outside: bool = False,
        otherwise: AnyApprover | None = None,
    ) -> None:
        if isinstance(prefixes, str) or not isinstance(prefixes, Iterable):
            raise UsageError(f"prefixes are a list, such as ['npm install'], not {prefixes!r}")
        self._prefixes = tuple(_prefix(one) for one in prefixes)
        self._outside = outside
        self._otherwise = as_approver(otherwise) or DenyAllApprover("it is not on the list")

    async def ask(self, question: Question) -> Answer:
        """Say yes to what is on the list; raises what the other approver raises."""
        if self._lists(question):
            return Answer(Choice.APPROVE)
        return await self._otherwise.ask(question)

    def _lists(self, question: Question) -> bool:
        if question.kind not in (Kind.COMMAND, Kind.RETRY):
            return False
        if Choice.APPROVE not in question.choices:
            return False
        if (question.outside or question.wants) and not self._outside:
            return False
        commands = split(question.argv) or (question.argv,)
        return all(
            any(command[: len(prefix)] == prefix for prefix in self._prefixes)
            for command in commands
        )


def _prefix(given: str | Sequence[str]) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(given) if isinstance(given, str) else given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{given!r} is no command: {error}") from None
    if not words or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{given!r} is no command; give its first words, such as 'npm install'")
    if is_too_broad(words):
        raise UsageError(f"{given!r} would allow almost anything; give more words")
    return words


class CallbackApprover(NamesChecked):
    """Calls a function, plain or async; it may answer with a Choice, an Answer or a bool.

    A plain function blocks the event loop while it decides, unless it is ``threaded``: called in a
    thread of its own.  Raises UsageError for what cannot be called with one question.
    """

    def __init__(self, ask: Callback, *, threaded: bool = False) -> None:
        try:
            inspect.signature(ask).bind(None)
        except TypeError:
            raise UsageError(
                f"{ask!r} cannot be called with one question; give a function such as"
                " `lambda question: False`"
            ) from None
        except ValueError:
            pass  # a built-in function that does not say what it takes
        self._ask = ask
        self._threaded = threaded and not inspect.iscoroutinefunction(ask)

    async def ask(self, question: Question) -> Answer:
        """Call the function; raises UsageError for an answer of another kind, and its errors."""
        if self._threaded:
            given = await asyncio.to_thread(self._ask, question)
        else:
            given = self._ask(question)
        if inspect.isawaitable(given):
            given = await given
        return _as_answer(given)


def _as_answer(given: object) -> Answer:
    if isinstance(given, bool):
        given = Choice.APPROVE if given else Choice.DENY
    if isinstance(given, Choice):
        given = Answer(given)
    if not isinstance(given, Answer):
        raise UsageError(
            f"an approver answered with {type(given).__name__}; give True, False, a Choice or an"
            " Answer"
        )
    return given


def as_approver(given: object, *, threaded: bool = False) -> Approver | None:
    """An approver, or a function as one; None stays None.  Raises UsageError for others."""
    if given is None:
        return None
    if not isinstance(given, type):
        ask = getattr(given, "ask", given)
        if callable(ask):
            return CallbackApprover(ask, threaded=threaded)
    raise UsageError(
        f"{given!r} is no approver; give a function of a question that answers True, False, a"
        " Choice or an Answer, or an object with such a method `ask`"
    )


class Pending:
    """A question in a queue."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def void(self) -> bool:
        """Whether the call that asked has been cancelled."""
        return self._answer.done()

    def answer(self, answer: Answer | Choice | bool) -> None:
        """Answer it, once; later answers and those to a void question have no effect.

        Raises UsageError for an answer of another kind.
        """
        if not self._answer.done():
            self._answer.set_result(_as_answer(answer))

    async def wait(self) -> Answer:
        return await self._answer


class QueueApprover(NamesChecked):
    """Queues questions for another task: ``async for pending in approver``.

    ``pending.question`` is the question and ``pending.answer(...)`` answers it.
    """

    def __init__(self, limit: int = 64) -> None:
        self._queue: asyncio.Queue[Pending] = asyncio.Queue(limit)

    async def ask(self, question: Question) -> Answer:
        """Put the question into the queue and wait for its answer; raises nothing."""
        pending = Pending(question)
        await self._queue.put(pending)
        return await pending.wait()

    async def next(self) -> Pending:
        """The next question that is not void; raises nothing."""
        while True:
            pending = await self._queue.get()
            if not pending.void:
                return pending

    async def __aiter__(self) -> AsyncIterator[Pending]:
        while True:
            yield await self.next()


class TerminalApprover(NamesChecked):
    """Asks at a terminal, one question after the other.  ``reader`` and ``writer`` are fds."""

    def __init__(self, reader: int = 0, writer: int = 2) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()
        #: Read after the end of a line, while the same question was open.
        self._unread = bytearray()

    async def ask(self, question: Question) -> Answer:
        """Show the question and read a key; a no if the terminal is gone.  Raises OSError."""
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
            loop.add_reader(self._reader, set_done, ready)
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
