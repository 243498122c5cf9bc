"""Questions about hosts at the terminal of ``handrail run``, whose keys go to the command.

While a question is open, the keys are its answer, and the output of the command waits: it could
wipe the question out and put another one in its place, to which a yes is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import threading

from handrail.orchestrator.approvals import Answer, Choice, Question
from handrail.orchestrator.approvers import TerminalApprover, prompt, read_answer

_CTRL_C = "\x03"
#: Ends what the command has begun (a sequence, hidden or invisible text, a scrolling region).
_PLAIN = "\x18\x1b\\\x1b[!p\x1b[0m"

#: The length of ``"> "``, with which a question ends.
_MARK = 2


class HostQuestions:
    """An approver at a terminal on which the command writes too."""

    def __init__(self) -> None:
        #: Held by an open question, and by the relay while it writes output.
        self.screen = asyncio.Lock()

    async def ask(self, question: Question) -> Answer:
        """Show the question when the screen is free, and wait for the answer; raises OSError."""
        async with self.screen:
            return await self._put(question)

    async def _put(self, question: Question) -> Answer:
        raise NotImplementedError

    def take(self, data: bytes) -> bool:
        """Whether what was typed to the command is taken; called in any thread."""
        return False


class DeviceQuestions(HostQuestions):
    """Asks at a terminal of which the command's input is not read."""

    def __init__(self, terminal: int) -> None:
        super().__init__()
        self._terminal = terminal
        self._approver = TerminalApprover(terminal, terminal)

    async def _put(self, question: Question) -> Answer:
        os.write(self._terminal, _PLAIN.encode())
        return await self._approver.ask(question)


class KeyQuestions(HostQuestions):
    """An approver that is given what is typed: by the relay, which reads the terminal."""

    def __init__(self, writer: int, *, raw: bool) -> None:
        """``writer``: the terminal, to show questions on."""
        super().__init__()
        self._writer = writer
        #: One key is an answer; otherwise a line is.
        self._raw = raw
        self._guard = threading.Lock()
        self._question: Question | None = None
        self._reply: asyncio.Future[Answer] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _put(self, question: Question) -> Answer:
        self._loop = asyncio.get_running_loop()
        reply: asyncio.Future[Answer] = self._loop.create_future()
        with self._guard:
            text = _PLAIN + prompt(question)
            self._say(text[:-_MARK])
            # What was typed before the question was shown is no answer to it.
            with contextlib.suppress(termios.error):
                termios.tcflush(0, termios.TCIFLUSH)
            self._question, self._reply = question, reply
            self._say(text[-_MARK:])  # what is typed at the mark is an answer
        try:
            return await reply
        finally:
            with self._guard:
                self._question = self._reply = None
            self._say("\n")

    def take(self, data: bytes) -> bool:
        """Whether it was the answer to a question, or was typed at one; called in any thread."""
        if self._question is None:
            return False  # read before the question was shown, which may be happening now
        with self._guard:
            question, reply, loop = self._question, self._reply, self._loop
        if question is None or reply is None or loop is None:
            return False
        text = data.decode("utf-8", "replace")
        typed = text[:1] if self._raw else text.strip()
        answer = Answer(Choice.DENY) if typed == _CTRL_C or not data else None
        answer = answer or read_answer(question, typed)
        if answer is None:
            self._say("? ")
        else:
            loop.call_soon_threadsafe(_set, reply, answer)
        return True

    def _say(self, text: str) -> None:
        if self._raw:
            text = text.replace("\n", "\r\n")
        os.write(self._writer, text.encode("utf-8", "replace"))


def _set(reply: asyncio.Future[Answer], answer: Answer) -> None:
    if not reply.done():
        reply.set_result(answer)


def at_terminal(*, keys: bool, raw: bool) -> HostQuestions | None:
    """Ask at the terminal of this session, wherever our streams lead; None: there is none.

    ``keys``: it is our input as well, one key at a time if it is ``raw``.
    """
    if keys and os.isatty(2):
        return KeyQuestions(2, raw=raw)
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    return KeyQuestions(terminal, raw=raw) if keys else DeviceQuestions(terminal)
