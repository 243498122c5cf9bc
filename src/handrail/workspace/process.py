"""One process of a workspace: write to it, wait for it, read its output."""

from __future__ import annotations

import re
import shlex
import signal as signals
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from handrail.errors import UsageError
from handrail.executor.base import WaitReason
from handrail.name_hints import NamesChecked
from handrail.process.exit_status import ExitInfo
from handrail.process.signal_names import signal_name
from handrail.workspace.arguments import SHELL, seconds, to_bytes
from handrail.workspace.process_follower import GRACE_SECONDS, ProcessFollower
from handrail.workspace.refused_hosts import RefusedHosts
from handrail.workspace.result import Event, Exited, Gap, Result, Waited, decoded

if TYPE_CHECKING:
    from handrail.sandbox.explain_refusal import Words
    from handrail.secret_masks import Secrets
    from handrail.workspace.output.lines import Line


async def explain_refusal(process: AsyncProcess, tail: bytes, words: Words) -> str | None:
    """What the sandbox has refused to a process that has ended, in the words of a surface.

    ``tail``: the end of its stderr, or of its terminal.
    """
    follower = process._follower  # noqa: SLF001 (of this module)
    info = follower.exit
    if info is None or not info.code:
        return None
    return follower.explain(info, await follower.denials(info), tail, words)


def explain_command(process: AsyncProcess, info: ExitInfo, tail: bytes, cwd: str) -> str | None:
    """What the sandbox of a session has refused to one command of it, which ended like this."""
    return process._follower.explain(info, (), tail, cwd=cwd)  # noqa: SLF001 (of this module)


def begin_command(process: AsyncProcess, argv: tuple[str, ...], cwd: str) -> None:
    """A session begins this command: questions about hosts are about it from now on."""
    process._follower.next_call(argv, cwd)  # noqa: SLF001 (of this module)


async def refused_to_command(process: AsyncProcess) -> RefusedHosts:
    """The hosts that were refused since the last command of a session; never raises."""
    return await process._follower.newly_refused()  # noqa: SLF001 (of this module)


def on_refused_host(process: AsyncProcess, call: Callable[[], None]) -> None:
    """Have ``call`` called when a managed network has refused it a host."""
    process._follower.on_refused_host(call)  # noqa: SLF001 (of this module)


class AsyncProcess(NamesChecked):
    """A running command.  Made by ``AsyncWorkspace.start``.

    Iterating gives ``Output`` events from the first retained one on, then one ``Exited``; each
    iteration has a reader of its own, for which the process waits when ``keep_output`` is full.
    Output that was dropped before is told by a ``Gap``.  As an async context manager it ends the
    process.
    """

    def __init__(self, follower: ProcessFollower) -> None:
        self._follower = follower
        self._session = follower.session
        self._position = 0

    def __repr__(self) -> str:
        state = "running" if (info := self.exit) is None else f"{info.kind.value} {info.code}"
        return f"<{type(self).__name__} {self.id} {_words(self.argv)}: {state}>"

    # --- state ---------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its id on its machine."""
        return self._session.process_id

    @property
    def argv(self) -> tuple[str | bytes, ...]:
        """The argv it was started with."""
        return self._follower.argv

    @property
    def name(self) -> str | None:
        """The name it was started with; None: it has none."""
        return self._follower.name

    @property
    def stored(self) -> bool:
        """Whether only its stored result is left: its server has forgotten it, or is gone."""
        return self._session.stored

    @property
    def labels(self) -> dict[str, str]:
        """Its labels: those of its workspace and its own."""
        return dict(self._follower.labels)

    @property
    def exit(self) -> ExitInfo | None:
        """How it ended; None while it runs."""
        return self._follower.exit

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return self._follower.running

    @property
    def secrets(self) -> Secrets:
        """The values that are masked in its text."""
        return self._follower.secrets

    # --- input ---------------------------------------------------------------------------

    async def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Write to its stdin or terminal; text is sent as UTF-8, and no newline is added.

        Raises WriteFailed or StdinClosed when it accepts no more input, and WriteFailed when it
        has not read enough to make room within ``timeout`` seconds; what was not accepted by then
        is never written.
        """
        await self._session.write(to_bytes(data), seconds(timeout, "timeout"))

    async def press(self, *keys: str) -> None:
        """Press keys of its terminal: ``enter``, ``up``, ``f5``, ``ctrl-c``, ``alt-x``, ``q``.

        Raises UsageError for an unknown key, and what ``send`` raises.
        """
        from handrail.executor.keys import key_text

        if not keys:
            raise UsageError("there is no key to press; give names such as 'enter' or 'ctrl-c'")
        await self.send(key_text(keys, words="send()"))

    async def close_stdin(self) -> None:
        """Tell it that no more input will come; raises WriteFailed where that is not possible.

        In a terminal that is its end-of-file key (Ctrl-D), typed twice after an unfinished line.  A
        program that has put its terminal into raw mode reads a key like any other, and cannot be
        told this way.
        """
        await self._session.close_stdin()

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal, in characters; raises ResizeFailed without one, and
        UsageError for a size that no terminal has."""
        await self._session.resize(rows, cols)

    # --- its end -------------------------------------------------------------------------

    async def signal(self, signal: str | int | signals.Signals) -> None:
        """Send a signal to its process group: ``"TERM"``, ``"SIGTERM"``, 15, ``signal.SIGTERM``.

        Raises UsageError for an unknown one, ExecutorTransportFailed.
        """
        await self._session.signal(signal_name(signal))

    async def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C would; raises ExecutorTransportFailed."""
        await self._session.signal("interrupt")

    async def terminate(self, grace: float = GRACE_SECONDS) -> None:
        """End it with all its descendants: SIGTERM, and after ``grace`` seconds SIGKILL.

        Raises TerminateFailed, and UsageError for an invalid grace.
        """
        await self._session.terminate(grace)

    async def wait(self, timeout: float | None = None) -> ExitInfo | None:
        """Wait for its exit; None if it still runs after ``timeout`` seconds.  This never ends it.

        Raises ExecutorTransportFailed when the connection is lost for good.
        """
        return await self._follower.wait(timeout)

    async def wait_for(
        self,
        *patterns: str | re.Pattern[str],
        idle: float | None = None,
        exit: bool = True,  # noqa: A002 (what is waited for)
        timeout: float | None = None,
    ) -> Waited:
        """Wait for whatever comes first and say which: a pattern, silence, the exit, a deadline.

        ``patterns`` are regular expressions, matched against the output after the last match, the
        retained output included.  ``idle``: seconds without output.  ``timeout``: seconds until
        the wait (not the process) is given up.  With ``exit=False`` an exit alone does not end
        the wait as long as output can still come.  Raises UsageError for a bad pattern and
        ExecutorTransportFailed when the connection is lost for good.
        """
        if not patterns and idle is None and timeout is None and not exit:
            raise UsageError("there is nothing to wait for; give a pattern, idle or timeout")
        outcome = await self._session.wait_for(
            *map(_source, patterns),
            idle=seconds(idle, "idle"),
            exit=exit,
            timeout=seconds(timeout, "timeout"),
            start=self._position,
        )
        if outcome.reason is WaitReason.PATTERN:
            self._position = outcome.position
        return Waited(
            outcome.reason,
            self._follower.secrets.masked(outcome.match).decode("utf-8", "replace"),
            outcome.pattern,
            self.exit,
        )

    expect = wait_for

    # --- output --------------------------------------------------------------------------

    def __aiter__(self) -> AsyncGenerator[Event]:
        return self.follow()

    async def follow(
        self, *, since: float | None = None, wait: bool = True
    ) -> AsyncGenerator[Event]:
        """Yield the events that iterating gives, as a generator that can be closed.

        ``since``: of a process that was left, only what was written in the last so many seconds.
        ``wait=False``: of one that runs, only what is there now.
        While it lags by most of ``keep_output`` the process waits, and on another machine
        everything else of this workspace too.  Ending the process or the workspace waits for no
        reader.  Raises ExecutorTransportFailed when the connection is lost for good.
        """
        async with aclosing(self._event_blocks(since, wait=wait)) as blocks:
            async for block in blocks:
                for event in block:
                    yield event

    async def _event_blocks(
        self, since: float | None, *, wait: bool
    ) -> AsyncGenerator[list[Event]]:
        first, last = 0, None if wait or not self.running else self._session.last_seq
        if last == 0:
            return
        if (recent := seconds(since, "since")) is not None:
            first = await self._session.first_after(time.time() - recent)
        async with aclosing(self._follower.outputs()) as blocks:
            async for block in blocks:
                events: list[Event] = []
                for output in block:
                    if output.seq < first:
                        continue
                    if output.omitted:
                        events.append(Gap(output.omitted))
                    events.append(output)
                yield events
                if last is not None and block[-1].seq >= last:
                    return
        yield [Exited(await self._follower.exited())]

    async def lines(self) -> AsyncGenerator[Line]:
        """Yield its output as lines of text, each with its stream, as they come.

        As iterating does, it loses nothing and the process waits for this reader.  An unfinished
        line is given when its stream ends.  Raises ExecutorTransportFailed when the connection is
        lost for good.
        """
        async with aclosing(self._line_blocks()) as blocks:
            async for block in blocks:
                for lines in block:
                    for line in lines:
                        yield line

    def _line_blocks(self) -> AsyncGenerator[list[Iterable[Line]]]:
        return self._follower.lines()

    @overload
    async def result(
        self, *, timeout: float | None = None, text: Literal[True] = True
    ) -> Result[str]: ...
    @overload
    async def result(
        self, *, timeout: float | None = None, text: Literal[False]
    ) -> Result[bytes]: ...
    async def result(
        self, *, timeout: float | None = None, text: bool = True
    ) -> Result[str] | Result[bytes]:
        """All its retained output and its exit, as soon as both are known.

        With ``timeout``, what is known after that many seconds; the process runs on then.  A
        descendant that holds the streams open is waited for a quarter of a second, whether it
        writes or not; ``held_open`` tells.  Raises ExecutorTransportFailed when the connection is
        lost for good, and what ``on_output`` raised.
        """
        found: Result[Any] = await self._follower.result(timeout, text)
        return found if found.exit is not None else replace(found, process=self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        from handrail.workspace.uncancellable import to_the_end

        await to_the_end(self._follower.end())


def _words(argv: tuple[str | bytes, ...]) -> str:
    words = list(map(decoded, argv))
    return repr(words[2] if words[:2] == [SHELL, "-c"] else shlex.join(words))


def _source(pattern: object) -> str:
    """The text of a pattern, with the flags of a compiled one written into it, for a server.

    For all of it: not every server can do flags for a part.  Raises UsageError.
    """
    if isinstance(pattern, str):
        return pattern
    if not isinstance(pattern, re.Pattern) or not isinstance(pattern.pattern, str):
        raise UsageError(f"a pattern is a str, or a compiled one of str, not {pattern!r}")
    flags = "".join(
        letter
        for letter, flag in (
            ("i", re.IGNORECASE),
            ("m", re.MULTILINE),
            ("s", re.DOTALL),
            ("x", re.VERBOSE),
        )
        if pattern.flags & flag
    )
    return f"(?{flags}){pattern.pattern}" if flags else pattern.pattern
