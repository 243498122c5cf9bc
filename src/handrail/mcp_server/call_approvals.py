"""Running calls, and the question for an approval that each waits for.

A pending call outlives its request: an answer must come before the host gives up, an approval or a
slow start may take longer.  A host that cannot ask its user gets no question: the answer is that of
``--without-elicitation``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any, Protocol

from handrail.agent.tool_answer import ToolAnswer
from handrail.errors import UsageError
from handrail.orchestrator.approvals import Answer, Choice, Question

PREFIX = "call-"
_NUMBER = "."
#: Beyond so many, answers that were not fetched are forgotten.
_MOST = 256


class Channel(Protocol):
    """The host, as far as one request can reach it."""

    #: Questions can be sent while the request waits / only in its reply / not at all.
    can_ask: bool
    asks_in_reply: bool

    async def ask(self, question: Question) -> Answer:
        """Put a question to the user of the host."""

    async def progress(self, seconds: float, total: float, message: str) -> None:
        """Report progress."""


class PendingCall:
    """One call, the question it waits for, and its answer."""

    def __init__(self) -> None:
        self.name = PREFIX + secrets.token_hex(6)
        self.question: Question | None = None
        self.changed = asyncio.Event()
        #: Whether the question was sent.
        self.put = False
        self._asked = 0
        self._reply: asyncio.Future[Answer] | None = None
        #: A command may cause several questions at once; one after the other is shown.
        self._turn = asyncio.Lock()
        self.task: asyncio.Task[ToolAnswer] | None = None

    def start(self, work: Coroutine[Any, Any, ToolAnswer]) -> None:
        """Start the call; waiters are woken when it is done."""
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(lambda _: self.changed.set())

    @property
    def state(self) -> str:
        """The name with the number of the open question, for hosts that answer by a new call."""
        return f"{self.name}{_NUMBER}{self._asked}"

    @property
    def done(self) -> bool:
        return self.task is not None and self.task.done()

    async def ask(self, question: Question) -> Answer:
        """Wait for the answer to a question, behind those that are open."""
        async with self._turn:
            self._reply = asyncio.get_running_loop().create_future()
            self._asked += 1
            self.question, self.put = question, False
            self.changed.set()
            try:
                return await self._reply
            finally:
                self.question = self._reply = None

    def answer(self, answer: Answer, question: Question) -> None:
        """Answer this question; if it is open no more, or another one is, it has no effect."""
        if self.question is question and self._reply is not None and not self._reply.done():
            self._reply.set_result(answer)


class PendingCalls:
    """The running calls by name; as an approver, routes each question to its call."""

    def __init__(self, unasked: Choice = Choice.DENY) -> None:
        self._unasked = unasked
        self._open: dict[str, PendingCall] = {}
        self._asking: set[asyncio.Task[None]] = set()
        #: Set when a call begins, for questions that have none to carry them.
        self._begun = asyncio.Event()

    def new(self) -> PendingCall:
        if len(self._open) >= _MOST:
            self._forget_one()
        call = PendingCall()
        self._open[call.name] = call
        self._begun.set()
        return call

    def get(self, name: object) -> PendingCall | None:
        return self._open.get(name) if isinstance(name, str) else None

    def of_state(self, state: object) -> tuple[PendingCall | None, Question | None]:
        """The call of a state, and its question if that is the one the state was given for.

        A host may send an answer twice, and by then the call may have the next question.
        """
        name, _, _ = state.partition(_NUMBER) if isinstance(state, str) else ("", "", "")
        call = self.get(name)
        return call, call.question if call is not None and call.state == state else None

    def forget(self, call: PendingCall) -> None:
        self._open.pop(call.name, None)

    def _forget_one(self) -> None:
        """Drop the oldest answer that was not fetched; if all are still to come, nothing."""
        for call in self._open.values():
            if call.done:
                self.forget(call)
                return

    async def ask(self, question: Question) -> Answer:
        """``Approver``: the pending call carries the question.

        A command that runs on after its call was answered may ask about a host: the next call of
        the host carries that.
        """
        while True:
            call = await self._carrier(question.call_id)
            asking = asyncio.ensure_future(call.ask(question))
            try:
                over = () if call.task is None else (call.task,)
                await asyncio.wait((asking, *over), return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    return asking.result()
            finally:
                asking.cancel()

    def put(self, call: PendingCall, question: Question, channel: Channel) -> None:
        """Send the question to the host while the call waits, or answer it where it cannot ask."""
        if not channel.can_ask:
            call.answer(Answer(self._unasked, "the host cannot ask its user"), question)
            return

        async def send() -> None:
            call.answer(await channel.ask(question), question)

        task = asyncio.create_task(send())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _carrier(self, name: str) -> PendingCall:
        """The call of that name if it has not ended, else another one, perhaps one to come."""
        while True:
            running = {call.name: call for call in self._open.values() if not call.done}
            if running:
                return running.get(name) or next(iter(running.values()))
            self._begun.clear()
            await self._begun.wait()

    async def close(self) -> None:
        """Cancel the running calls and their questions."""
        tasks: list[asyncio.Task[Any]] = [*self._asking]
        tasks += [call.task for call in self._open.values() if call.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open.clear()


def read_unasked(word: str) -> Choice:
    """Parse the answer to use where no user can be asked; raises UsageError."""
    match word:
        case "deny":
            return Choice.DENY
        case "approve":
            return Choice.APPROVE
    raise UsageError(f"{word!r} is neither deny nor approve")
