"""``AsyncShell``: a bash or sh that keeps its state from one command to the next."""

from __future__ import annotations

import asyncio
import codecs
import functools
import inspect
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from handrail.errors import (
    ExecutorError,
    ExecutorSpawnFailed,
    ProcessError,
    StdinClosed,
    UsageError,
)
from handrail.futures import retrieve_exception, set_done
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.process.output.output_log import RETENTION_BYTES
from handrail.secret_masks import Secrets, StreamMasker
from handrail.workspace.arguments import byte_count, check_callable, seconds, to_bytes
from handrail.workspace.output.kept_output import KeptOutput
from handrail.workspace.process import (
    AsyncProcess,
    begin_command,
    explain_command,
    refused_to_command,
)
from handrail.workspace.process_follower import Listener
from handrail.workspace.result import Output, Result, output_of, shown_last_line
from handrail.workspace.sessions import shell_script
from handrail.workspace.sessions.marked_output import MarkedStream
from handrail.workspace.sessions.restartable import RestartableSession
from handrail.workspace.sessions.shell_interrupt import done_within, end_command
from handrail.workspace.uncancellable import to_the_end

if TYPE_CHECKING:
    from typing import Unpack

    from handrail.workspace.options import SessionRunOptions

#: Bytes of each stream that a result keeps.
MAX_OUTPUT = 64 * 1024 * 1024
#: Bytes kept of what background jobs write while no command runs.
_BETWEEN = 1024 * 1024
#: How long the shell may take to start.
_START_SECONDS = 30.0
#: How long output may still come after the exit when a descendant holds the streams open.
_DRAIN_SECONDS = 0.25

_DIALECTS = {"bash": shell_script.BASH, "sh": shell_script.SH}


class ShellEnded(ProcessError):
    """The shell of a session has ended; ``restart`` starts another."""


class AsyncShell(RestartableSession["_Life"]):
    """A shell session.  Made by ``AsyncWorkspace.shell``; ``async with`` ends it.

    Each command is evaluated by the same shell: its directory, variables, functions, options and
    background jobs are there for the next one.  Calls are run one after the other.
    """

    def __init__(
        self,
        program: str,
        start: Callable[..., Awaitable[AsyncProcess]],
        options: dict[str, Any],
        *,
        names_calls: bool = True,
    ) -> None:
        """``start`` is that of a workspace, with its ``options``.

        ``names_calls``: questions about hosts are told which command they are about.
        """
        self._names_calls = names_calls
        if program not in _DIALECTS:
            raise UsageError(f"a session is of 'bash' or 'sh', not {program!r}")
        self._program = program
        self._dialect = _DIALECTS[program]
        self._start = start
        env = {**(options.get("env") or {}), **dict(self._dialect.env)}
        name = options.get("name") or f"{program} session"
        self._options = {**options, "env": env, "name": name, "keep_output": RETENTION_BYTES}
        super().__init__()

    def __repr__(self) -> str:
        state = "running" if self.alive else "ended"
        where = self.cwd if self._life is None else self._life.hidden.masked_text(self.cwd)
        return f"<{type(self).__name__} {self._program} in {where!r}: {state}>"

    async def _begin(self) -> _Life:
        argv = [self._program, *self._dialect.arguments]
        process = await self._start(argv, **self._options)
        life = _Life(process, self._dialect)
        try:
            call = life.expect(_BETWEEN, None)
            await life.send(shell_script.begin(self._dialect, call.token))
            async with asyncio.timeout(_START_SECONDS):
                await call.done
        except BaseException as error:
            await to_the_end(life.end())
            if isinstance(error, TimeoutError):
                raise ExecutorSpawnFailed(
                    f"{self._program} did not answer within {_START_SECONDS:.0f} s of its start"
                ) from None
            raise
        if process.exit is not None:
            await life.end()
            said = call.kept["stderr"].shown(life.hidden).strip()[-500:]
            raise ExecutorSpawnFailed(
                f"{self._program} ended at its start with {process.exit.code}:"
                f" {said.decode('utf-8', 'replace')}; if the machine has no bash, use shell('sh')"
            )
        return life

    # --- state ---------------------------------------------------------------------------

    @property
    def cwd(self) -> str:
        """The shell's working directory after the last command; "" before the start."""
        return self._life.cwd if self._life is not None else ""

    @property
    def alive(self) -> bool:
        """Whether the shell runs; a command such as ``exit`` or ``exec`` ends it."""
        return self._life is not None and self._life.process.running

    @property
    def exit(self) -> ExitInfo | None:
        """How the shell ended; None while it runs."""
        return self._life.process.exit if self._life is not None else None

    # --- commands ------------------------------------------------------------------------

    @overload
    async def run(
        self,
        command: str | bytes,
        *,
        text: Literal[True] = True,
        **options: Unpack[SessionRunOptions],
    ) -> Result[str]: ...
    @overload
    async def run(
        self, command: str | bytes, *, text: Literal[False], **options: Unpack[SessionRunOptions]
    ) -> Result[bytes]: ...
    async def run(
        self,
        command: str | bytes,
        *,
        timeout: float | None = None,
        input: str | bytes | None = None,  # noqa: A002 (the name subprocess has for it)
        check: bool = False,
        text: bool = True,
        on_output: Listener | None = None,
        max_output: int | None = MAX_OUTPUT,
    ) -> Result[Any]:
        """Evaluate a command in the shell and return its result.

        ``timeout``: after so many seconds the command is interrupted (SIGINT), a second later its
        processes get SIGTERM and then SIGKILL; the shell goes on.  A cancelled call is ended in
        the same way.  ``input`` is its stdin, which is empty otherwise.  ``check``: raise
        CommandFailed unless it ended with 0.  ``text=False`` gives bytes.  ``on_output`` is
        called with each ``Output`` while it runs, and must not block.  ``max_output``: bytes of
        each stream to keep, half of them the first and half the last; ``omitted`` has the rest;
        None keeps all.

        A command that ends the shell gives the shell's exit, and ``alive`` is false then.  What
        background jobs write later is in the result of the next command.  Raises ShellEnded when
        the shell has ended before or was closed, UsageError, ExecutorTransportFailed, and what
        ``on_output`` raised.
        """
        limit = seconds(timeout, "timeout")
        script = shell_script.encoded(command)
        stdin = None if input is None else to_bytes(input)
        shell_script.check_input(self._program, stdin)
        most = None if max_output is None else byte_count(max_output, "max_output")
        check_callable(on_output, "on_output")
        if inspect.iscoroutinefunction(on_output):
            raise UsageError("on_output is a coroutine function, which is not awaited here")
        began = time.monotonic()
        argv = (self._program, "-c", os.fsdecode(script))
        async with self._lock:
            life = self._life
            if life is None or not self.alive:
                raise ShellEnded(_ended(self._program, self.exit))
            if self._names_calls:
                begin_command(life.process, argv, life.cwd)
            call = life.expect(most, on_output)
            words = shell_script.command(
                self._dialect, script, call.token, status=life.status, stdin=stdin
            )
            try:
                await life.send(words)
                timed_out = not await done_within(call.done, limit)
            except asyncio.CancelledError:
                await to_the_end(life.stop(call))
                raise
            if timed_out:
                await to_the_end(life.stop(call))
            call.raise_failure()
            info = life.exit_of(call, timed_out)
            hosts = await refused_to_command(life.process)
        result = _result(argv, call, life, info, time.monotonic() - began, text)
        if hosts.denials or hosts.notes:
            result = replace(result, denials=hosts.denials, notes=hosts.notes)
        return result.check() if check else result

    async def interrupt(self) -> None:
        """Interrupt the command that is being run, as Ctrl-C would; without one nothing happens.

        Raises ExecutorTransportFailed.
        """
        if self._life is not None:
            await to_the_end(self._life.interrupt())


class _Call:
    """One command: the output so far, its marks, and a future for its end."""

    def __init__(
        self, token: str, kept: dict[str, KeptOutput], hidden: Secrets, listener: Listener | None
    ) -> None:
        self.token = token  # of the mark that ends it: the last one that was asked for
        self.kept = kept
        self.hidden = hidden
        self._listener = listener
        self._masker: StreamMasker[str] = StreamMasker(hidden)
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in kept}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status: int | None = None
        self.open = {"stdout", "stderr"}
        self.failure: BaseException | None = None
        self.held_open = False
        self.missed = 0  # bytes of background jobs that were dropped before the call

    def finish(self, failure: BaseException | None = None) -> None:
        self.failure = self.failure or failure
        set_done(self.done)

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def tell(self, name: str, data: bytes, seq: int) -> None:
        """Call the listener; what it raises, the call raises."""
        if self._listener is not None and name in self.open:
            self._show(name, data, self._masker.feed(name, data), seq)

    def lost(self) -> None:
        """Bytes are missing before what comes next."""
        self._masker.cut()

    def tell_rest(self, name: str, seq: int) -> None:
        """The stream is over: tell the text that might have become a secret."""
        if rest := self._masker.finish_one(name):
            self._show(name, b"", rest, seq)

    def _show(self, name: str, data: bytes, shown: bytes, seq: int) -> None:
        if self._listener is None or self.failure is not None:
            return
        text = self._decoders[name].decode(shown)
        try:
            self._listener(Output(name, data, text, seq))
        except BaseException as error:  # noqa: BLE001 (raised by the call)
            self.failure = error


class _Life:
    """One shell process: a task that reads its output, and the call that is being made."""

    def __init__(self, process: AsyncProcess, dialect: shell_script.Dialect) -> None:
        self.process = process
        self.hidden = process.secrets
        self.cwd = ""
        self.status = 0
        self._dialect = dialect
        self._call: _Call | None = None
        self._kept = _kept(_BETWEEN, self.hidden)
        self._seq = 0
        self._streams = {
            name: MarkedStream(
                functools.partial(self._heard, name), functools.partial(self._marked, name)
            )
            for name in ("stdout", "stderr")
        }
        loop = asyncio.get_running_loop()
        self._reader = loop.create_task(self._read())
        self._watcher = loop.create_task(self._watch())
        for task in (self._reader, self._watcher):
            task.add_done_callback(retrieve_exception)

    def expect(self, max_output: int | None, listener: Listener | None) -> _Call:
        """Begin a call: what was written since the last one belongs to it."""
        before, self._kept = self._kept, _kept(max_output, self.hidden)
        call = self._call = _Call(secrets.token_hex(16), self._kept, self.hidden, listener)
        for name, kept in before.items():
            # As text where bytes are missing: a part of a secret would not be known any more.
            if earlier := kept.shown(self.hidden) if kept.omitted else kept.take():
                call.tell(name, earlier, self._seq)
                self._kept[name].add(earlier)
            call.missed += kept.omitted
        for stream in self._streams.values():
            stream.expect(call.token)
        if self._reader.done():
            call.finish()
        return call

    async def send(self, words: bytes) -> None:
        """Write to the shell; that it has ended meanwhile is found by its exit."""
        try:
            await to_the_end(self.process.send(words))
        except (ExecutorError, StdinClosed):
            if self.process.running:
                raise

    async def interrupt(self) -> None:
        """SIGINT, and a further mark: the shell may have dropped the one it had read."""
        call = self._call
        if call is None or call.done.done():
            return
        await self.process.interrupt()
        if call.done.done():
            return
        call.token = secrets.token_hex(16)
        call.open = {"stdout", "stderr"}
        for stream in self._streams.values():
            stream.expect(call.token)
        await self.send(shell_script.resume(self._dialect, call.token))

    async def stop(self, call: _Call) -> None:
        """End the command of a call; the shell goes on if it can."""
        await end_command(self.process, call.done, self.interrupt)

    def exit_of(self, call: _Call, timed_out: bool) -> ExitInfo:
        """How the command of a call ended."""
        ended = self.process.exit
        if call.status is not None:
            kind = ExitKind.TIMED_OUT if timed_out else ExitKind.EXITED
            return ExitInfo(kind, call.status)
        if ended is None:
            return ExitInfo(ExitKind.LOST, None)
        if timed_out:
            return ExitInfo(ExitKind.TIMED_OUT, ended.code, ended.signal)
        return ended

    def _heard(self, name: str, data: bytes) -> None:
        self._kept[name].add(data)
        if self._call is not None:
            self._call.tell(name, data, self._seq)

    def _marked(self, name: str, token: str, said: bytes) -> None:
        call = self._call
        if call is None:
            return
        if name == "stdout" and call.status is None:
            # A command can forge this: it can read the line of the script that prints it.
            status, _, cwd = said.partition(b" ")
            known = status.isdigit() and len(status) <= 3
            self.status = call.status = int(status) if known else 255
            self.cwd = os.fsdecode(cwd)
        if token == call.token:
            call.tell_rest(name, self._seq)
            call.open.discard(name)
            # Whatever follows on this stream is a background job's.
            self._kept = {**self._kept, name: KeptOutput(_BETWEEN, self.hidden)}
            if not call.open:
                self._over(call)

    def _over(self, call: _Call) -> None:
        for stream in self._streams.values():
            stream.forget()
        self._call = None
        call.finish()

    async def _read(self) -> None:
        async for event in self.process.follow():
            if isinstance(event, Output):
                self._seq = event.seq
                self._kept[event.stream].missed += event.omitted
                if event.omitted and self._call is not None:
                    self._call.lost()
                self._streams[event.stream].feed(event.data)

    async def _watch(self) -> None:
        """Finish the call when the shell has ended; fail it when that will never be known."""
        failure: BaseException | None = None
        try:
            await self.process.wait()
            await asyncio.wait((self._reader,), timeout=_DRAIN_SECONDS)
        except ExecutorError as error:
            failure = error
        call = self._call
        for stream in self._streams.values():
            stream.flush()
        if call is not None:
            call.held_open = not self._reader.done()
            for name in call.open:
                call.tell_rest(name, self._seq)
            self._call = None
            call.finish(failure)

    async def end(self) -> None:
        """End the shell, its descendants and the tasks; never raises."""
        try:
            await self.process.terminate(0.0)
        except (ExecutorError, ProcessError):
            pass  # the connection is lost, and its server ends it
        await asyncio.wait((self._watcher,), timeout=_DRAIN_SECONDS * 2)
        for task in (self._reader, self._watcher):
            task.cancel()
        await asyncio.gather(self._reader, self._watcher, return_exceptions=True)
        if self._call is not None:
            self._call.finish()


def _kept(limit: int | None, hidden: Secrets) -> dict[str, KeptOutput]:
    return {name: KeptOutput(limit, hidden) for name in ("stdout", "stderr")}


def _result(
    argv: tuple[str | bytes, ...], call: _Call, life: _Life, info: ExitInfo, took: float, text: bool
) -> Result[Any]:
    out, err, final = call.kept["stdout"], call.kept["stderr"], not call.open
    tail = err.end(call.hidden) if info.code else b""
    return Result(
        call.hidden.masked_words(argv),
        cast("Any", output_of(out, call.hidden, text=text, final=final)),
        cast("Any", output_of(err, call.hidden, text=text, final=final)),
        info,
        took,
        omitted=call.missed + out.omitted + err.omitted,
        held_open=call.held_open,
        refusal=explain_command(life.process, info, tail, life.cwd),
        last_line=shown_last_line(out, err, call.hidden, text=text),
    )


def _ended(program: str, info: ExitInfo | None) -> str:
    how = "" if info is None else f" with {info.code}"
    return f"this {program} has ended{how}; call restart, or open another shell"
