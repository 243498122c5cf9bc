"""Blocking version of ``AsyncProcess``."""

from __future__ import annotations

import os
import re
import signal as signals
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from handrail.name_hints import NamesChecked
from handrail.process.exit_status import ExitInfo
from handrail.secret_masks import Secrets
from handrail.workspace.process import AsyncProcess
from handrail.workspace.process_follower import GRACE_SECONDS
from handrail.workspace.result import Event, Result, Waited
from handrail.workspace.synchronous import loop_thread
from handrail.workspace.synchronous.callback_thread import CallbackThread

if TYPE_CHECKING:
    from handrail.workspace.output.lines import Line

T = TypeVar("T")


class Process(NamesChecked):
    """A running command.  Made by ``Workspace.start``; every call may come from any thread.

    Iterating gives ``Output`` events from the first retained one on, then one ``Exited``; the
    process waits for the reader when ``keep_output`` is full, and a ``Gap`` tells what was dropped
    before.  As a context manager it ends the process.
    """

    def __init__(
        self,
        twin: AsyncProcess,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
        listening: CallbackThread | None = None,
    ) -> None:
        self._twin = twin
        self._call = call
        self._listening = listening

    def __repr__(self) -> str:
        return repr(self._twin).replace("AsyncProcess", "Process", 1)

    @property
    def id(self) -> str:
        """Its id on its machine."""
        return self._twin.id

    @property
    def argv(self) -> tuple[str | bytes, ...]:
        """The argv it was started with."""
        return self._twin.argv

    @property
    def name(self) -> str | None:
        """The name it was started with; None: it has none."""
        return self._twin.name

    @property
    def stored(self) -> bool:
        """Whether only its stored result is left: its server has forgotten it, or is gone."""
        return self._twin.stored

    @property
    def labels(self) -> dict[str, str]:
        """Its labels: those of its workspace and its own."""
        return self._twin.labels

    @property
    def secrets(self) -> Secrets:
        """The values that are masked in its text."""
        return self._twin.secrets

    @property
    def exit(self) -> ExitInfo | None:
        """How it ended; None while it runs."""
        return self._twin.exit

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return self._twin.running

    def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Write to its stdin or terminal, without adding a newline; raises WriteFailed, also when
        it has not read enough to make room within ``timeout`` seconds."""
        self._call(self._twin.send(data, timeout=timeout))

    def press(self, *keys: str) -> None:
        """Press keys of its terminal, such as ``up`` or ``ctrl-c``; see ``AsyncProcess.press``."""
        self._call(self._twin.press(*keys))

    def close_stdin(self) -> None:
        """Tell it that no more input will come; raises WriteFailed where that is not possible."""
        self._call(self._twin.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal, in characters; raises ResizeFailed without one."""
        self._call(self._twin.resize(rows, cols))

    def signal(self, signal: str | int | signals.Signals) -> None:
        """Send a signal, by name or number, to its group; see ``AsyncProcess.signal``."""
        self._call(self._twin.signal(signal))

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C would; raises ExecutorTransportFailed."""
        self._call(self._twin.interrupt())

    def terminate(self, grace: float = GRACE_SECONDS) -> None:
        """End it with all its descendants, after ``grace`` seconds by SIGKILL.

        Raises TerminateFailed.
        """
        self._call(self._twin.terminate(grace))

    def wait(self, timeout: float | None = None) -> ExitInfo | None:
        """Wait for its exit; None if it still runs after ``timeout`` seconds.

        Raises ExecutorTransportFailed when the connection is lost for good.
        """
        found: ExitInfo | None = self._call(self._twin.wait(timeout))
        return found

    def wait_for(
        self,
        *patterns: str | re.Pattern[str],
        idle: float | None = None,
        exit: bool = True,  # noqa: A002 (what is waited for)
        timeout: float | None = None,
    ) -> Waited:
        """Wait for a pattern, silence, the exit or a deadline; see ``AsyncProcess.wait_for``."""
        waited: Waited = self._call(
            self._twin.wait_for(*patterns, idle=idle, exit=exit, timeout=timeout)
        )
        return waited

    expect = wait_for

    @overload
    def result(
        self, *, timeout: float | None = None, text: Literal[True] = True
    ) -> Result[str]: ...
    @overload
    def result(self, *, timeout: float | None = None, text: Literal[False]) -> Result[bytes]: ...
    def result(
        self, *, timeout: float | None = None, text: bool = True
    ) -> Result[str] | Result[bytes]:
        """All its retained output and how it ended; see ``AsyncProcess.result``."""
        found: Result[Any] = self._call(
            self._twin.result(timeout=timeout, text=text)  # type: ignore[call-overload]
        )
        if found.process is not None:
            return replace(found, process=self)
        if self._listening is not None:
            self._listening.finish()
        return found

    def __iter__(self) -> Iterator[Event]:
        return self.follow()

    def follow(self, *, since: float | None = None, wait: bool = True) -> Generator[Event]:
        """Yield the events that iterating gives; see ``AsyncProcess.follow``."""
        blocks = self._twin._event_blocks(since, wait=wait)  # noqa: SLF001 (its twin)
        for block in self._iterate(blocks):
            yield from block

    def lines(self) -> Iterator[Line]:
        """Yield its output as lines of text, as they come; see ``AsyncProcess.lines``."""
        blocks = self._iterate(self._twin._line_blocks())  # noqa: SLF001 (its twin)
        # One chain: each further one would take a tenth of the time of all.
        return chain.from_iterable(lines for block in blocks for lines in block)

    def _iterate(self, events: AsyncIterator[T]) -> Generator[T]:
        owner = os.getpid()
        try:
            while (event := self._call(_next(events))) is not None:
                yield event
        finally:
            # Not when the interpreter's end discards it: no loop can run then.  Nor in a forked
            # child, which has a copy of it but not its process.
            if not sys.is_finalizing() and owner == os.getpid():
                loop_thread.bridge().clean_up(events.aclose())  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._twin.__aexit__())


async def _next(events: AsyncIterator[T]) -> T | None:
    async for event in events:
        return event
    return None
