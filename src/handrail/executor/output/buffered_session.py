"""A session whose output is in an ``OutputBuffer``: what local, remote and scripted ones share."""

from __future__ import annotations

import time
from collections.abc import Callable

from handrail.errors import ExecutorTransportFailed, HandrailError
from handrail.executor.base import ExecSession, WaitOutcome
from handrail.executor.output.buffer import Follower, OutputBuffer
from handrail.executor.wait_for import Looking, Patience, follow
from handrail.process.exit_status import ExitInfo

#: Line feed, carriage return, which the terminal turns into one, and the end-of-file key itself.
_LINE_ENDS = (b"\n", b"\r", b"\x04")


class UnfinishedLine:
    """Tracks whether a terminal holds an unfinished line: how often its end-of-file key is needed.

    The key does not mean "no more input": it hands over what was typed so far.  Only when that is
    nothing does the program read an end.  So after an unfinished line the key is needed twice.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open = False

    def typed(self, data: bytes) -> None:
        """Note what was written to the terminal."""
        if data:
            self._open = bytes(data[-1:]) not in _LINE_ENDS

    def ends(self) -> int:
        """How often to type the end-of-file key now; the line is empty afterwards."""
        times = 2 if self._open else 1
        self._open = False
        return times


class BufferedSession(ExecSession):
    """Subscriptions, the exit, and waits for either.

    An implementation adds output to ``_history``, sets ``_exit`` and wakes ``_history``, and ends
    it, or fails it when the rest will never be known.
    """

    def __init__(self, process_id: str, gate: Callable[[bool], None] | None = None) -> None:
        """``gate`` is that of ``OutputBuffer``."""
        self.process_id = process_id
        self._history = OutputBuffer(gate=gate)
        self._exit: ExitInfo | None = None

    def subscribe_output(self, *, paced: bool = False) -> Follower:
        return self._history.follow(paced=paced)

    def keep_output(self, limit: int) -> None:
        self._history.keep(limit)

    @property
    def last_seq(self) -> int:
        return self._history.last_seq

    def try_exit_status(self) -> ExitInfo | None:
        return self._exit

    async def wait(self) -> ExitInfo:
        while self._exit is None:
            if self._history.failure is not None:
                raise _again(self._history.failure, "failed to wait for process: ")
            await self._history.changed()
        return self._exit

    async def wait_closed(self) -> None:
        while not self._history.ended:
            await self._history.changed()
        if self._history.failure is not None:
            raise _again(self._history.failure)

    async def _exited_by(self, deadline: float) -> bool:
        """Wait for the exit until then, by the monotonic clock; whether it is known."""
        while self._exit is None and self._history.failure is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await self._history.changed(left)
        return self._exit is not None

    async def wait_for(
        self,
        *patterns: str | bytes,
        idle: float | None = None,
        exit: bool = True,  # noqa: A002 (what is waited for)
        timeout: float | None = None,
        start: int = 0,
    ) -> WaitOutcome:
        exited = lambda: self._exit is not None  # noqa: E731
        looking = Looking(self._history, exited, patterns, exit=exit, start=start)
        return await self._follow(looking, Patience(idle, timeout))

    async def _follow(self, looking: Looking, patience: Patience) -> WaitOutcome:
        return await follow(looking, patience)


def _again(failure: HandrailError, before: str = "") -> ExecutorTransportFailed:
    if isinstance(failure, ExecutorTransportFailed):
        return failure.again(before)
    return ExecutorTransportFailed(before + failure.detail)
