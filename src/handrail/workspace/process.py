"""One process of a workspace: write to it, wait for it, read its output."""

from __future__ import annotations

import asyncio
import codecs
import re
import shlex
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, Self, cast, overload

from handrail.errors import ExecutorError, StdinClosed, UsageError
from handrail.executor.base import ExecSession, OutputKind, WaitReason
from handrail.process import TIMEOUT_GRACE
from handrail.process.spec import ExitInfo, ExitKind
from handrail.workspace.arguments import SHELL, seconds, to_bytes
from handrail.workspace.callback_thread import CallbackThread
from handrail.workspace.output_collector import OutputCollector
from handrail.workspace.result import Denial, Event, Exited, Output, Result, Waited

#: Seconds between TERM and KILL when ``terminate`` or the end of the workspace ends a process.
GRACE_SECONDS = 0.5
#: How long after the last KILL a server may take to say that a command was out of time.
_NEWS_SECONDS = 1.0

#: Called with each piece of output; may be a coroutine function.
Listener = Callable[[Output], object]


class AsyncProcess:
    """A running command.  Made by ``AsyncWorkspace.start``.

    Iterating gives ``Output`` events from the first retained one on, then one ``Exited``; each
    iteration has a reader of its own.  As an async context manager it ends the process.
    """

    def __init__(
        self,
        session: ExecSession,
        argv: tuple[str | bytes, ...],
        *,
        sandboxed: bool,
        started: float,
        returned_to: bool = False,
    ) -> None:
        self._session = session
        self._sandboxed = sandboxed
        self._started = started  # time.monotonic, before the start was requested
        self._ended: float | None = None  # when its end was seen
        self._returned_to = returned_to
        self._position = 0
        self._timed_out = False
        self._timed_here = False  # its executor does not enforce the timeout, so this does
        self._held_open = False  # seen after its end
        self._tasks: set[asyncio.Task[None]] = set()
        self._ender: asyncio.Task[None] | None = None
        self._collected: OutputCollector | None = None
        self.argv = argv

    def __repr__(self) -> str:
        state = "running" if (info := self.exit) is None else f"{info.kind.value} {info.code}"
        return f"<{type(self).__name__} {self.id} {_words(self.argv)}: {state}>"

    # --- state ---------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its id on its machine."""
        return self._session.process_id

    @property
    def exit(self) -> ExitInfo | None:
        """How it ended; None while it runs."""
        info = self._session.try_exit_status()
        return None if info is None else self._seen(info)

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return self._session.try_exit_status() is None

    @property
    def _shown(self) -> bool:
        """Whether it is among the processes of its workspace.

        After ``attach`` every process is: it may have ended while the workspace was detached, and
        its exit and output are still to be fetched.
        """
        return self.running or self._returned_to

    @property
    def _worth_finding(self) -> bool:
        """Whether a later ``attach`` may want it."""
        return self._shown or self._ended is None

    def _seen(self, info: ExitInfo) -> ExitInfo:
        if self._ended is None:
            self._ended = time.monotonic()
        if self._timed_out and info.kind in (ExitKind.TERMINATED, ExitKind.SIGNALED):
            return replace(info, kind=ExitKind.TIMED_OUT)
        return info

    # --- input ---------------------------------------------------------------------------

    async def send(self, data: str | bytes, *, timeout: float | None = None) -> None:
        """Write to its stdin or terminal; text is sent as UTF-8, and no newline is added.

        Raises WriteFailed or StdinClosed when it accepts no more input, and WriteFailed when it
        has not read enough to make room within ``timeout`` seconds; what was not accepted by then
        is never written.
        """
        await self._session.write(to_bytes(data), seconds(timeout, "timeout"))

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

    async def signal(self, name: str) -> None:
        """Send a signal by its lower-case name (``term``, ``usr1``) to its process group.

        Raises UsageError for an unknown name, ExecutorTransportFailed.
        """
        await self._session.signal(name)

    async def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C would; raises ExecutorTransportFailed."""
        await self._session.signal("interrupt")

    async def terminate(self, grace: float = GRACE_SECONDS) -> None:
        """End it with all its descendants: SIGTERM, and after ``grace`` seconds SIGKILL.

        Raises TerminateFailed, and UsageError for an invalid grace.
        """
        await self._session.terminate(grace)

    async def wait(self, wait: float | None = None) -> ExitInfo | None:
        """Wait for its exit; None if it still runs after ``wait`` seconds.  This never ends it.

        Raises ExecutorTransportFailed when the connection is lost for good.
        """
        limit = seconds(wait, "wait")
        try:
            async with asyncio.timeout(limit):
                return self._seen(await self._session.wait())
        except TimeoutError:
            return self.exit

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
            outcome.reason, outcome.match.decode("utf-8", "replace"), outcome.pattern, self.exit
        )

    # --- output --------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for output in self._outputs():
            yield output
        yield Exited(self._seen(await self._session.wait()))

    async def follow(self) -> AsyncGenerator[Event]:
        """Yield the same events without loss: while this reader lags the process waits.

        On another machine everything else of this workspace waits too.  Leave it by ``aclose``,
        or the process may wait for ever.  Ending the process or the workspace waits for no reader;
        one that lags then gets what is retained (``omitted`` has the rest).  Raises
        ExecutorTransportFailed when the connection is lost for good.
        """
        outputs = self._outputs(paced=True)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()
        yield Exited(self._seen(await self._session.wait()))

    async def _outputs(self, *, paced: bool = False) -> AsyncGenerator[Output]:
        decoders = {kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in OutputKind}
        events = self._session.subscribe_output(paced=paced)
        try:
            async for event in events:
                text = decoders[event.kind].decode(event.data)
                yield Output(event.kind.value, event.data, text, event.seq, event.omitted)
        finally:
            events.close()

    @overload
    async def result(
        self, *, wait: float | None = None, text: Literal[True] = True
    ) -> Result[str]: ...
    @overload
    async def result(self, *, wait: float | None = None, text: Literal[False]) -> Result[bytes]: ...
    async def result(
        self, *, wait: float | None = None, text: bool = True
    ) -> Result[str] | Result[bytes]:
        """All its retained output and its exit, as soon as both are known.

        With ``wait``, what is known after that many seconds; the process runs on then.  A
        descendant that holds the streams open is waited for a quarter of a second, whether it
        writes or not; ``held_open`` tells.  Raises ExecutorTransportFailed when the connection is
        lost for good, and what ``on_output`` raised.
        """
        return await self._result_and_all_told(wait, text)

    async def _result_and_all_told(self, wait: float | None, text: bool) -> Result[Any]:
        result = await self._outcome(wait, text)
        if result.exit is not None:
            await self._settle()
        return result

    async def _outcome(self, wait: float | None, text: bool) -> Result[Any]:
        collected = self._collect()
        info = await self._waited(wait)
        held = False
        if info is not None:
            # A process that timed out is ended with its tree, which may take its grace.
            more = TIMEOUT_GRACE if info.kind is ExitKind.TIMED_OUT else 0.0
            held = self._held_open = not await collected.drained(more)
        return self._result(collected, info, held, await self._denials(info), text)

    async def _waited(self, wait: float | None) -> ExitInfo | None:
        """Like ``wait``; raises what kept its timeout from ending it."""
        ender = self._ender
        if ender is None:
            return await self.wait(wait)
        waiting = asyncio.get_running_loop().create_task(self.wait(wait))
        try:
            await asyncio.wait((waiting, ender), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and not ender.cancelled():
                ender.result()
            return await waiting
        finally:
            waiting.cancel()

    def _result(
        self,
        collected: OutputCollector,
        info: ExitInfo | None,
        held: bool,
        denials: tuple[Denial, ...],
        text: bool,
    ) -> Result[Any]:
        until = self._ended if info is not None and self._ended else time.monotonic()
        out, err = bytes(collected.stdout), bytes(collected.stderr)
        return Result(
            self.argv,
            cast("Any", out.decode("utf-8", "replace") if text else out),
            cast("Any", err.decode("utf-8", "replace") if text else err),
            info,
            until - self._started,
            denials,
            collected.omitted,
            held,
            self if info is None else None,
        )

    async def _denials(self, info: ExitInfo | None) -> tuple[Denial, ...]:
        if info is None or not self._sandboxed:
            return ()
        found = await self._session.denied()
        if found.evidence:
            return tuple(map(Denial.from_evidence, found.evidence))
        return (Denial("unknown", source="output"),) if found.likely else ()

    # --- for the workspace ---------------------------------------------------------------

    def _collect(self) -> OutputCollector:
        """Start to collect all output, from the first retained byte on; once."""
        if self._collected is None:
            self._collected = OutputCollector(self._session)
        return self._collected

    def _watch(
        self,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        stdin: bytes | None = None,
    ) -> None:
        """Start the tasks for its input, listener and timeout."""
        if timeout is not None and not self._timed_here:
            # Its executor ends it.  A server may fall silent, and then this call must not wait.
            if hasattr(self._session, "out_of_reach"):
                self._ender = self._spawn(self._end_after(timeout + TIMEOUT_GRACE + _NEWS_SECONDS))
        elif timeout is not None:
            self._ender = self._spawn(self._end_after(timeout))
        if listener is not None:
            self._spawn(self._tell(listener))
        if stdin is not None:
            self._spawn(self._feed(stdin))

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(_noticed)
        self._tasks.add(task)
        return task

    async def _end_after(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._session.wait()
        except TimeoutError:
            self._timed_out = self.running
            await self._session.terminate(TIMEOUT_GRACE)

    async def _tell(self, listener: Listener) -> None:
        try:
            async for output in self._outputs():
                said = listener(output)
                if isinstance(said, Awaitable):
                    await said
        finally:
            if isinstance(listener, CallbackThread):
                listener.end()  # or its thread would wait for ever

    async def _feed(self, data: bytes) -> None:
        try:
            await self._session.write(data)
            await self._session.close_stdin()
        except (ExecutorError, StdinClosed):
            pass  # it did not read all, as `head` does not; its exit says whether that is bad

    async def _settle(self) -> None:
        """After the end: wait for the listener; raises what it raised."""
        for task in list(self._tasks):
            if self._collected is not None and not self._collected.done:
                task.cancel()  # a descendant holds the streams open; the listener has all output
            try:
                await task
            except asyncio.CancelledError:
                if not task.cancelled():
                    raise
            finally:
                self._tasks.discard(task)

    def _let_go(self) -> None:
        """Stop following it here."""
        for task in self._tasks:
            task.cancel()
        if self._collected is not None:
            self._collected.stop()

    async def _end(self, grace: float = GRACE_SECONDS) -> None:
        """End it and its tasks; never raises.

        A task that waits for its result still gets all of it.
        """
        end_later = getattr(self._session, "end_later", None)
        try:
            if end_later is not None and getattr(self._session, "out_of_reach", False):
                end_later()
            else:
                await self._session.terminate(grace)
                await self._session.wait()
                if self._collected is not None:
                    await self._collected.drained()
        except ExecutorError:
            pass  # the connection is lost, and its server ends it
        self._let_go()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        from handrail.workspace.uncancellable import to_the_end

        await to_the_end(self._end())


def _noticed(task: asyncio.Task[None]) -> None:
    """Retrieve the exception; ``result`` raises it, if it is called."""
    if not task.cancelled():
        task.exception()


def _words(argv: tuple[str | bytes, ...]) -> str:
    words = [w.decode("utf-8", "replace") if isinstance(w, bytes) else w for w in argv]
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
