"""Runs one command to its end, with a time limit and no further input (``AgentShell.run``).

What is kept of each stream is bounded; all of it is read, so the command never waits for us.  A
command that is cancelled gets TERM and a moment before KILL.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from handrail.errors import ExecutorError
from handrail.executor.base import (
    Denied,
    ExecSession,
    Executor,
    OutputKind,
    SpawnRequest,
)
from handrail.executor.caller_timeout import exit_or_end
from handrail.orchestrator.audit import Outcome
from handrail.orchestrator.call import Call
from handrail.orchestrator.call_flow import Attempt, CallFlow
from handrail.orchestrator.result import (
    TIMEOUT_EXIT_CODE,
    UNKNOWN_EXIT_CODE,
    CommandTimedOut,
    ExecOutput,
    KilledBySignal,
    aggregate,
)
from handrail.orchestrator.run import Orchestrator, Ran
from handrail.process.env_policy import EnvPolicy
from handrail.process.exit_status import ExitKind
from handrail.process.output.output_log import RETENTION_BYTES

DEFAULT_TIMEOUT = 10.0
#: How long pipes that a descendant holds open are read after the exit.
DRAIN_LIMIT = 2.0
#: Bytes kept of each stream, and of both together.
KEEP = 1024 * 1024
CANCEL_GRACE = 0.05
#: Output events have at most this size, and there are at most so many of them.
PIECE = 8192
MOST_PIECES = 10_000

OnOutput = Callable[[OutputKind, bytes], None]


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run.  ``timeout`` is seconds; None: no limit.  ``on_output`` gets its output."""

    call: Call
    env: Mapping[str, str] = field(repr=False)
    timeout: float | None = DEFAULT_TIMEOUT
    on_output: OnOutput | None = None
    #: Its whole standard input; None: it is empty.
    stdin: bytes | None = field(default=None, repr=False)
    #: What it inherits of the executor's environment; None: nothing.
    env_policy: EnvPolicy | None = None


@dataclass(slots=True)
class _Kept:
    """Both streams, up to their limits."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    omitted: int = 0

    def take(self, kind: OutputKind, data: bytes) -> None:
        stream = self.stderr if kind is OutputKind.STDERR else self.stdout
        room = KEEP - len(stream)
        stream += data[:room]
        self.omitted += max(0, len(data) - room)

    def output(self, exit_code: int, duration: float, *, timed_out: bool = False) -> ExecOutput:
        out, err = bytes(self.stdout), bytes(self.stderr)
        whole = aggregate(out, err, KEEP)
        return ExecOutput(exit_code, out, err, whole, duration, timed_out, self.omitted)


async def run_command(
    orchestrator: Orchestrator, executor: Executor, command: Command
) -> ExecOutput:
    """Run a command through policy, approval, sandbox and retry.

    Raises CommandTimedOut and KilledBySignal, both with the output, and what stopped it before.
    """
    call = command.call
    if call.env is None:
        call = replace(call, env=command.env)
    flow = orchestrator.flow(call)

    async def runner(attempt: Attempt) -> Ran[ExecOutput]:
        try:
            output, denied = await capture(executor, command, attempt, orchestrator, flow)
        except CommandTimedOut:
            flow.finished(Outcome.TIMED_OUT)
            raise
        except KilledBySignal:
            flow.finished(Outcome.SIGNAL)
            raise
        return Ran(output, denied, output.aggregated)

    return await orchestrator.go(flow, runner)


async def capture(
    executor: Executor,
    command: Command,
    attempt: Attempt,
    orchestrator: Orchestrator,
    flow: CallFlow,
) -> tuple[ExecOutput, Denied]:
    """Run it once."""
    call = command.call
    start = time.monotonic()
    request = SpawnRequest(
        f"{call.call_id}-{attempt.number}",
        call.argv,
        call.cwd,
        command.env,
        env_policy=command.env_policy,
        pipe_stdin=command.stdin is not None,
    )
    session = await orchestrator.start(executor, request, flow, attempt)
    kept = _Kept()
    reader = asyncio.create_task(_read(session, kept, command.on_output))
    feeder = asyncio.create_task(_feed(session, command.stdin))
    try:
        end = await exit_or_end(session, command.timeout)
        if end is None:
            await session.wait()
        else:
            await asyncio.wait([reader], timeout=DRAIN_LIMIT)
    except asyncio.CancelledError:
        await session.terminate(CANCEL_GRACE)
        raise
    finally:
        reader.cancel()
        feeder.cancel()
        failure, _ = await asyncio.gather(reader, feeder, return_exceptions=True)
    if isinstance(failure, Exception):
        raise failure  # what was read until then is not the output
    duration = time.monotonic() - start
    if end is None:
        limit = command.timeout or 0.0
        output = kept.output(TIMEOUT_EXIT_CODE, duration, timed_out=True)
        raise CommandTimedOut(output, limit)
    code = UNKNOWN_EXIT_CODE if end.code is None else end.code
    output = kept.output(code, duration)
    denied = await session.denied() if attempt.sandboxed else Denied(likely=False)
    output = replace(output, notes=flow.host_notes(denied))
    if end.kind is ExitKind.SIGNALED and not denied.likely:
        raise KilledBySignal(end.signal or "a signal", output)
    return output, denied


async def _feed(session: ExecSession, data: bytes | None) -> None:
    if data is None:
        return
    try:
        await session.write(data)
        await session.close_stdin()
    except ExecutorError:
        pass  # it exited without reading; its exit says how


async def _read(session: ExecSession, kept: _Kept, on_output: OnOutput | None) -> None:
    try:
        await _hand_on(session, kept, on_output)
    except Exception:
        # With no reader left it could wait for one, and nothing would come of what it does.
        await session.terminate(CANCEL_GRACE)
        raise


async def _hand_on(session: ExecSession, kept: _Kept, on_output: OnOutput | None) -> None:
    pieces = 0
    session.keep_output(RETENTION_BYTES)  # there is no later reader
    async for event in session.subscribe_output():
        kept.take(event.kind, event.data)
        kept.omitted += event.omitted
        if on_output is None:
            continue
        for at in range(0, len(event.data), PIECE):
            if pieces < MOST_PIECES:
                on_output(event.kind, event.data[at : at + PIECE])
            pieces += 1
