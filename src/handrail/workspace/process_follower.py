"""Follows one process for its workspace: input, listener, timeout, collected output, its end."""

from __future__ import annotations

import asyncio
import codecs
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

from handrail.errors import ExecutorError, StdinClosed
from handrail.executor.base import (
    ExecSession,
    ExecutorFeatures,
    OutputEvent,
    OutputKind,
    SpawnRequest,
)
from handrail.executor.caller_timeout import exit_or_end
from handrail.executor.output.buffer import KEEP_OUTPUT, Follower
from handrail.futures import retrieve_exception
from handrail.process import TIMEOUT_GRACE
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.secret_masks import NO_SECRETS, Secrets, StreamMasker
from handrail.workspace.arguments import seconds
from handrail.workspace.output.collector import OutputCollector
from handrail.workspace.refused_hosts import HostsTold, RefusedHosts
from handrail.workspace.result import Denial, Output, Result, output_of, shown_last_line
from handrail.workspace.synchronous.callback_thread import CallbackThread

if TYPE_CHECKING:
    from handrail.orchestrator.network_call import NetworkCall
    from handrail.sandbox.explain_refusal import Words
    from handrail.workspace.output.lines import Line

#: Seconds between TERM and KILL when ``terminate`` or the end of the workspace ends a process.
GRACE_SECONDS = 0.5
#: How long after the last KILL a server may take to say that a command was out of time.
_NEWS_SECONDS = 1.0

#: About how much output that has arrived a reader takes at once.
_BLOCK_BYTES = 256 * 1024

#: Called with each piece of output; may be a coroutine function.
Listener = Callable[[Output], object]


class ProcessFollower:
    """One process, its tasks and what is known of it here."""

    def __init__(
        self,
        session: ExecSession,
        argv: tuple[str | bytes, ...],
        features: ExecutorFeatures,
        *,
        sandboxed: bool,
        request: SpawnRequest | None = None,
        started: float | None = None,
        returned_to: bool = False,
        secrets: Secrets = NO_SECRETS,
        keep_output: int = KEEP_OUTPUT,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        network: NetworkCall | None = None,
    ) -> None:
        """``request``: how it was started, if it was started here.

        ``started``: by the monotonic clock, before the start was requested; None: now.
        """
        self._request = request
        self._network = network
        self._hosts_told = HostsTold()
        self.secrets = secrets
        self.session = session
        self.name = name
        self.labels = dict(labels or {})
        #: The session of the server in which it was started; None: the present one.
        self.session_id: str | None = None
        #: In seconds since the epoch.
        self.started_at = time.time()
        #: A caller has been told of its end.
        self.seen = False
        self.argv = argv
        self._features = features
        self._sandboxed = sandboxed
        self._started = time.monotonic() if started is None else started
        self._ended: float | None = None  # when its end was seen
        self._returned_to = returned_to
        self._keep_output = keep_output
        session.keep_output(keep_output)
        self._timed_out = False
        #: Its executor does not enforce the timeout, so this does.
        self.timed_here = False
        #: A descendant had its streams open when its end was seen.
        self.held_open = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ender: asyncio.Task[None] | None = None
        self._collected: OutputCollector | None = None

    @property
    def exit(self) -> ExitInfo | None:
        """How it ended; None while it runs."""
        info = self.session.try_exit_status()
        return None if info is None else self._seen(info)

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return self.session.try_exit_status() is None

    @property
    def shown(self) -> bool:
        """Whether it is among the processes of its workspace.

        After ``attach`` every process is: it may have ended while the workspace was detached, and
        its exit and output are still to be fetched.
        """
        return self.running or self._returned_to

    @property
    def worth_finding(self) -> bool:
        """Whether a later ``attach`` may want it."""
        return self.shown or self._ended is None

    def _seen(self, info: ExitInfo) -> ExitInfo:
        if self._ended is None:
            self._ended = time.monotonic()
        if self._timed_out and info.kind in (ExitKind.TERMINATED, ExitKind.SIGNALED):
            return replace(info, kind=ExitKind.TIMED_OUT)
        return info

    async def wait(self, timeout: float | None = None) -> ExitInfo | None:
        """Wait for its exit; None if it still runs after ``timeout`` seconds."""
        limit = seconds(timeout, "timeout")
        if limit is None:
            return await self.exited()
        try:
            async with asyncio.timeout(limit):
                return await self.exited()
        except TimeoutError:
            return self.exit

    async def exited(self) -> ExitInfo:
        """Wait for its exit."""
        info = self._seen(await self.session.wait())
        self.seen = True
        return info

    async def _pieces(self) -> AsyncGenerator[list[OutputEvent]]:
        """All output from the first retained byte on; the process waits for this reader.

        What has arrived comes at once: a blocking reader takes a switch of threads for each list.
        """
        events = self.session.subscribe_output(paced=True)
        try:
            async for event in events:
                more = events.ready(_BLOCK_BYTES) if isinstance(events, Follower) else ()
                yield [event, *more]
        finally:
            events.close()

    async def outputs(self) -> AsyncGenerator[list[Output]]:
        """All output from the first retained byte on, decoded, and secrets masked in its text."""
        decoders = {kind: codecs.getincrementaldecoder("utf-8")("replace") for kind in OutputKind}
        masker: StreamMasker[OutputKind] = StreamMasker(self.secrets)
        last = 0
        async with aclosing(self._pieces()) as blocks:
            async for block in blocks:
                last = block[-1].seq
                masked = ((e.kind, masker.feed(e.kind, e.data, e.omitted)) for e in block)
                shown = (decoders[kind].decode(data) for kind, data in masked)
                yield [
                    Output(e.kind.value, e.data, text, e.seq, e.omitted)
                    for e, text in zip(block, shown, strict=True)
                ]
        if rest := list(masker.finish()):
            yield [
                Output(kind.value, b"", decoders[kind].decode(data), last) for kind, data in rest
            ]

    async def lines(self) -> AsyncGenerator[list[Iterable[Line]]]:
        """All output from the first retained byte on, as lines with secrets masked, in blocks."""
        from handrail.workspace.output.lines import LineSplitter

        splitter = LineSplitter()
        masker: StreamMasker[OutputKind] = StreamMasker(self.secrets)
        async with aclosing(self._pieces()) as blocks:
            async for block in blocks:
                if self.secrets:
                    block = [replace(e, data=masker.feed(e.kind, e.data, e.omitted)) for e in block]
                found = [lines for event in block for lines in splitter.add(event)]
                if found:
                    yield found
        for kind, rest in masker.finish():
            yield splitter.add(OutputEvent(kind, rest, 0))
        yield list(splitter.end())

    async def result(self, timeout: float | None, text: bool) -> Result[Any]:
        """Implements ``AsyncProcess.result``, without ``process``."""
        collected = self.collect()
        info = await self._waited(timeout)
        held = False
        if info is not None:
            # A process that timed out is ended with its tree, which may take its grace.
            more = TIMEOUT_GRACE if info.kind is ExitKind.TIMED_OUT else 0.0
            held = self.held_open = not await collected.drained(more)
        result = self._result(collected, info, held, await self.denials(info), text)
        if info is not None:
            await self._settle()
        return result

    async def _waited(self, timeout: float | None) -> ExitInfo | None:
        """Like ``wait``; raises what kept its timeout from ending it."""
        ender = self._ender
        if ender is None:
            return await self.wait(timeout)
        waiting = asyncio.get_running_loop().create_task(self.wait(timeout))
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
        out, err, final = collected.stdout, collected.stderr, collected.done
        blamed = out if self._request is not None and self._request.tty else err
        tail = blamed.end(self.secrets) if info is not None and info.code else b""
        return Result(
            self.argv,
            cast("Any", output_of(out, self.secrets, text=text, final=final)),
            cast("Any", output_of(err, self.secrets, text=text, final=final)),
            info,
            until - self._started,
            denials,
            collected.omitted,
            held,
            refusal=self.explain(info, denials, tail),
            last_line=shown_last_line(out, err, self.secrets, text=text),
            notes=() if self._network is None else self._network.notes(map(asdict, denials)),
        )

    def explain(
        self,
        info: ExitInfo | None,
        denials: tuple[Denial, ...],
        tail: bytes,
        words: Words | None = None,
        cwd: str = "",
    ) -> str | None:
        """What its sandbox has refused, in one sentence; None for any other end.

        ``tail``: the end of its stderr, or of its terminal.  ``cwd``: where it is by now.
        """
        request = self._request
        failed = info is not None and bool(info.code)
        if not failed or request is None or request.sandbox is None or info is None:
            return None
        if info.kind is ExitKind.TIMED_OUT:
            tail = b""  # it has not come to its end: what was recorded is certain, this is not
        from handrail.sandbox import explain_refusal  # only for a command that failed

        where, managed = os.fsencode(cwd or request.cwd), self._network is not None
        return explain_refusal.explain(
            explain_refusal.Rules.of(request.sandbox, where, managed=managed),
            info.code,
            tail[-explain_refusal.LOOKED_AT :],
            denials,
            words or explain_refusal.PYTHON,
            could=explain_refusal.user_could if self._features.local else None,
        )

    def next_call(self, argv: tuple[str, ...], cwd: str) -> None:
        """The process goes on with another command, as a session does."""
        if self._network is not None:
            shown = self.secrets.masked_words(argv)
            words = tuple(os.fsdecode(word) for word in shown)
            self._network.next_call(replace(self._network.facts, argv=words, cwd=cwd))

    def on_refused_host(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when its managed network has refused a host."""
        if self._network is not None:
            self._network.on_refused = call

    async def newly_refused(self) -> RefusedHosts:
        """The hosts that it was refused since this was last called; never raises."""
        if self._network is None:
            return RefusedHosts()
        try:
            records = await self.session.refused_hosts()
        except ExecutorError:
            return RefusedHosts()
        new = self._hosts_told.new(records)
        shown = tuple(Denial.from_evidence(self.secrets.masked_value(one)) for one in new)
        return RefusedHosts(shown, self._network.notes(map(asdict, shown)))

    async def denials(self, info: ExitInfo | None) -> tuple[Denial, ...]:
        """What the sandbox refused to a process that has ended."""
        if info is None or not self._sandboxed:
            return ()
        found = await self.session.denied()
        if found.evidence:
            shown = (self.secrets.masked_value(one) for one in found.evidence)
            return tuple(map(Denial.from_evidence, shown))
        return (Denial("unknown", source="output"),) if found.likely else ()

    def collect(self, most: int | None = -1) -> OutputCollector:
        """Start to collect output, from the first retained byte on; once.

        ``most`` is how many bytes of each stream to keep at most, by default as many as are kept
        for its readers; None: all.
        """
        if self._collected is None:
            most = self._keep_output if most == -1 else most
            self._collected = OutputCollector(self.session, most, self.secrets)
        return self._collected

    def watch(
        self,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
        stdin: bytes | None = None,
    ) -> None:
        """Start the tasks for its input, listener and timeout."""
        self.timed_here = timeout is not None and not self._features.timeouts
        if timeout is not None and self.timed_here:
            self._ender = self._spawn(self._end_after(timeout))
        elif timeout is not None and self._features.remote:
            # Its executor ends it.  A server may fall silent, and then this call must not wait.
            self._ender = self._spawn(self._end_after(timeout + TIMEOUT_GRACE + _NEWS_SECONDS))
        if listener is not None:
            self._spawn(self._tell(listener))
        if stdin is not None:
            self._spawn(self._feed(stdin))

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(retrieve_exception)
        self._tasks.add(task)
        return task

    async def _end_after(self, timeout: float) -> None:
        def over() -> None:
            self._timed_out = self.running

        await exit_or_end(self.session, timeout, TIMEOUT_GRACE, over)

    async def _tell(self, listener: Listener) -> None:
        try:
            async for outputs in self.outputs():
                for output in outputs:
                    said = listener(output)
                    if isinstance(said, Awaitable):
                        await said
        finally:
            if isinstance(listener, CallbackThread):
                listener.end()  # or its thread would wait for ever

    async def _feed(self, data: bytes) -> None:
        try:
            await self.session.write(data)
            await self.session.close_stdin()
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

    def let_go(self) -> None:
        """Stop following it here."""
        for task in self._tasks:
            task.cancel()
        if self._collected is not None:
            self._collected.stop()

    async def end(self, grace: float = GRACE_SECONDS) -> None:
        """End it and its tasks; never raises.

        A task that waits for its result still gets all of it.
        """
        try:
            if self.session.out_of_reach:
                self.session.end_later()
            else:
                await self.session.terminate(grace)
                await self.session.wait()
                if self._collected is not None:
                    await self._collected.drained()
        except ExecutorError:
            pass  # the connection is lost, and its server ends it
        self.let_go()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
