"""The calls of one agent: start a command, write to it later, read what was left out.

An interrupted call loses nothing: its process stays open, and the next call gets its output.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from handrail.errors import HandrailError, UsageError
from handrail.executor.base import ExecSession, Executor
from handrail.executor.output.head_tail import HeadTail
from handrail.orchestrator.audit import guarded
from handrail.unified_exec.answer import Circumstances, make_answer
from handrail.unified_exec.events import Event, Listener
from handrail.unified_exec.gate import Ended, ExecCall, Gate, Started
from handrail.unified_exec.patch_command import intercepted
from handrail.unified_exec.process import Origin, Process
from handrail.unified_exec.process_lifecycle import Background, Processes
from handrail.unified_exec.send_input import send
from handrail.unified_exec.settings import Settings
from handrail.unified_exec.spawn_request import spawn_id, spawn_request
from handrail.unified_exec.tools import (
    ExecAnswer,
    ExecCommandArgs,
    OutputRange,
    ReadOutputArgs,
    ToolFailed,
    UnknownProcess,
    WriteStdinArgs,
)
from handrail.unified_exec.transcript import Transcript
from handrail.unified_exec.wait import Collection
from handrail.unified_exec.yield_time import (
    DEFAULT_EXEC_MS,
    DEFAULT_WRITE_MS,
    exec_yield,
    poll_yield,
    write_yield,
)

__all__ = ["Background", "UnifiedExec"]

#: A program has this long before the wait for its reaction begins.
_AFTER_WRITE = 0.1


class UnifiedExec:
    """``exec_command`` and ``write_stdin`` on an executor; one event loop, any number of tasks."""

    def __init__(
        self,
        executor: Executor,
        *,
        settings: Settings,
        gate: Gate | None = None,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._executor = executor
        self._settings = settings
        self._gate = gate
        self._tell: Listener = guarded(listener or _ignore)
        self._clock = clock
        self._rng = rng or random.Random(secrets.randbits(64))  # noqa: S311 (ids, no secrets)
        self._processes = Processes(settings, self._rng)
        self._table = self._processes.table
        self._closed = False

    @property
    def settings(self) -> Settings:
        return self._settings

    async def exec_command(
        self, args: ExecCommandArgs, *, call_id: str | None = None
    ) -> ExecAnswer:
        """Start a command and return what it printed within the waiting time.

        Raises ToolFailed.
        """
        call_id = call_id or f"call_{secrets.token_hex(8)}"
        number = self._table.reserve()
        try:
            spawn = await spawn_request(args, self._settings, self._executor, number)
            argv = tuple(str(word) for word in spawn.argv)
            patched = await intercepted(
                argv,
                spawn.cwd,
                call_id,
                files=self._executor.files,
                gate=self._gate,
                listener=self._tell,
            )
            if patched is not None:
                self._table.release(number)
                return patched
            call = ExecCall(call_id, number, args, spawn)
            origin = Origin(call_id, number, args.cmd, argv, spawn.cwd, args.tty)
            started = await self._let_in(call)
            process, notes = await self._start(call, origin, started)
        except UsageError as error:
            self._table.release(number)
            raise ToolFailed(f"exec_command failed: {error}") from error
        except BaseException:
            if self._table.get(number) is None:  # else cancelled while another was pruned
                self._table.release(number)
            raise
        return await self._first_answer(call, process, started.session, notes)

    async def write_stdin(self, args: WriteStdinArgs) -> ExecAnswer:
        """Write to a session and return what it printed since the last answer.

        Raises UnknownProcess, ToolFailed.
        """
        while (process := self._table.get(args.session_id)) is not None:
            async with process.lock:
                # The call before this one may have reported its end, or started it again.
                if self._table.get(args.session_id) is process:
                    return await self._interact(process, args)
        return self._of_the_ended(args)

    def read_output(self, args: ReadOutputArgs) -> OutputRange:
        """A range of everything a session printed, also for a while after its end.

        Raises UnknownProcess.
        """
        process = self._table.get(args.session_id)
        if process is None:
            tombstone = self._table.ended(args.session_id)
            if tombstone is None:
                raise UnknownProcess("read_output", args.session_id)
            process = tombstone.process
        return process.transcript.read(args.offset, args.max_bytes)

    def background(self) -> list[Background]:
        """The running processes, by id."""
        return self._processes.background()

    async def terminate(self, process_id: int) -> bool:
        """End one process; False if there is none of that id."""
        return await self._processes.terminate(process_id)

    async def clean(self) -> int:
        """End all processes; returns how many there were."""
        return await self._processes.clean()

    @contextmanager
    def asking(self, call_id: str) -> Iterator[None]:
        """Stop the waiting time of calls on this call's process while a question is open."""
        paused = [p for p in self._table.all() if p.origin.call_id == call_id]
        for process in paused:
            process.pauses.begin(self._clock())
        try:
            yield
        finally:
            for process in paused:
                process.pauses.end(self._clock())
                process.wake()

    async def close(self) -> None:
        """End every process and forget everything."""
        self._closed = True
        await self._processes.close()

    # --- starting --------------------------------------------------------------------------------

    async def _let_in(self, call: ExecCall) -> Started:
        try:
            if self._gate is not None:
                return await self._gate.start(call)
            return Started(await self._executor.spawn(call.spawn))
        except HandrailError as error:
            # Without the prefix of the executor's error families, which repeats "process".
            raise ToolFailed(f"exec_command failed: {error.detail}") from error

    async def _start(
        self, call: ExecCall, origin: Origin, started: Started
    ) -> tuple[Process, tuple[str, ...]]:
        """Watch a started process, and keep it if it runs on; returns the notes for the model."""
        if self._closed:
            await started.session.terminate()
            raise ToolFailed("exec_command failed: the tools have been closed meanwhile")
        process = Process(
            origin,
            started.session,
            clock=self._clock,
            listener=self._tell,
            buffer_bytes=self._settings.buffer_bytes,
            transcript=Transcript(self._settings.transcript_bytes, self._settings.transcript_dir),
            attempt=call.attempt,
        )
        if started.session.try_exit_status() is not None:
            return process, started.notes
        # Stored before the first await: a cancelled call must not lose it.
        return process, (*started.notes, *await self._processes.keep(process))

    async def _first_answer(
        self, call: ExecCall, process: Process, session: ExecSession, notes: tuple[str, ...]
    ) -> ExecAnswer:
        # The session is an argument: if ``terminate`` ended the process, it has been let go.
        args = call.args
        requested = DEFAULT_EXEC_MS if args.yield_time_ms is None else args.yield_time_ms
        while True:
            async with process.lock:
                deadline = process.started + exec_yield(requested) / 1000
                collection = Collection(deadline, process.pauses)
                try:
                    taken = await process.collect(collection)
                except BaseException:
                    if self._table.get(call.process_id) is not process:
                        self._processes.bury(process)
                    raise
                again = await self._again(call, process, session, taken)
                if again is None:
                    return self._answer(
                        "exec_command",
                        process,
                        taken,
                        collection,
                        process.started,
                        notes,
                        args.max_output_tokens,
                    )
                self._table.remove(process)
                self._processes.retire(process)
            call = replace(
                call,
                attempt=call.attempt + 1,
                spawn=replace(call.spawn, process_id=spawn_id(call.process_id)),
            )
            process, notes = await self._start(call, process.origin, again)
            session = again.session

    async def _again(
        self, call: ExecCall, process: Process, session: ExecSession, taken: HeadTail
    ) -> Started | None:
        """Ask the gate about a process that ended within its first call."""
        if process.exit is None or process.failure or self._gate is None:
            return None
        ended = Ended(session, process.exit, taken.rendered())
        try:
            return await self._gate.ended(call, ended)
        except asyncio.CancelledError:
            if self._table.get(call.process_id) is process:
                process.give_back(taken)  # the next call reports its end
            else:
                self._processes.bury(process)
            raise
        except BaseException:
            # The gate's refusal is the answer.
            self._table.remove(process)
            self._processes.bury(process)
            raise

    async def _interact(self, process: Process, args: WriteStdinArgs) -> ExecAnswer:
        process.touch()
        begun = self._clock()
        wrote = await send(process, args)
        requested = DEFAULT_WRITE_MS if args.yield_time_ms is None else args.yield_time_ms
        if wrote:
            begun = self._clock() + (0.0 if process.exited else _AFTER_WRITE)
            wait = write_yield(requested)
        else:
            wait = poll_yield(requested, self._settings.max_poll_ms)
        collection = Collection(begun + wait / 1000, process.pauses)
        taken = await process.collect(collection)
        process.touch()
        if not wrote and not process.exited:
            process.interaction("")
        return self._answer(
            "write_stdin", process, taken, collection, begun, (), args.max_output_tokens
        )

    # --- answering -------------------------------------------------------------------------------

    def _answer(
        self,
        tool: str,
        process: Process,
        taken: HeadTail,
        collection: Collection,
        begun: float,
        notes: tuple[str, ...],
        max_output_tokens: int | None,
    ) -> ExecAnswer:
        seconds = max(self._clock() - begun, 0.0)
        alive = not process.exited
        if not alive:
            self._table.remove(process)
            self._processes.bury(process)
            if process.failure:
                raise ToolFailed(f"{tool} failed: {process.failure}", output=taken.content())
            if collection.left_open:
                late = (
                    "something it started still holds its output open; read_output with"
                    f" session_id {process.origin.process_id} and offset {process.reported} gives"
                    " what that prints later"
                )
                notes = (*notes, late)
        circumstances = Circumstances(self._chunk_id(), seconds, alive, notes)
        return make_answer(process, taken, circumstances, self._settings, max_output_tokens)

    def _of_the_ended(self, args: WriteStdinArgs) -> ExecAnswer:
        """An ended session is unknown, unless the call would only end it."""
        tombstone = self._table.ended(args.session_id)
        if tombstone is None:
            raise UnknownProcess("write_stdin", args.session_id)
        process = tombstone.process
        interrupt = args.chars == "\x03" or (not args.chars and args.keys == ("ctrl-c",))
        if interrupt and process.exited:
            note = "the session had ended before"
            circumstances = Circumstances(self._chunk_id(), 0.0, alive=False, notes=(note,))
            return make_answer(process, HeadTail(0), circumstances, self._settings, None)
        if tombstone.pruned:
            how = "it was ended to make room for others"
        else:
            how = f"it ended with exit code {process.exit_code}, as an answer said"
        raise UnknownProcess(
            "write_stdin",
            args.session_id,
            f": {how}; read_output still gives what it printed",
        )

    def _chunk_id(self) -> str:
        return f"{self._rng.randrange(1 << 24):06x}"


def _ignore(event: Event) -> None:
    """Ignore an event."""
