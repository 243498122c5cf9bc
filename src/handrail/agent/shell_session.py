"""Runs the commands of an agent in one shell session, so that each finds the state of the last.

A command that needs a terminal, a sandbox of its own or another shell gets a process of its own.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict, replace
from typing import Any

from handrail.agent.orchestrator_gate import OrchestratorGate
from handrail.agent.workspace_executor import MaskedSession
from handrail.errors import HandrailError, ResizeFailed, UsageError, WriteFailed
from handrail.executor.base import Denied, Executor, OutputKind, SpawnRequest
from handrail.executor.output.buffered_session import BufferedSession
from handrail.orchestrator.call_flow import Attempt, CallFlow
from handrail.orchestrator.network_call import NetworkCall
from handrail.orchestrator.run import Orchestrator
from handrail.policy.program_files import forbidden_whole
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.process.output.output_log import RETENTION_BYTES
from handrail.secret_masks import NO_SECRETS, Secrets, StreamMasker
from handrail.unified_exec.gate import ExecCall, Started
from handrail.workspace.process import AsyncProcess
from handrail.workspace.process_follower import ProcessFollower
from handrail.workspace.result import Output
from handrail.workspace.sessions import shell_script
from handrail.workspace.sessions.shell import AsyncShell

_BUSY = (
    "a command still runs in the shell session; wait for it or interrupt it with write_stdin, or"
    " run this one with tty=true beside it"
)
_BEGUN_ANEW = (
    "the shell of the session had ended, so another was started: its directory, variables and"
    " functions are those of the beginning"
)


class SessionCommand(BufferedSession):
    """One command of a shell session, as a process for unified exec."""

    def __init__(self, process_id: str, shell: AsyncShell, script: bytes, hidden: Secrets) -> None:
        super().__init__(process_id)
        self._shell = shell
        self._masker: StreamMasker[OutputKind] = StreamMasker(hidden)
        self._seq = 0
        self._refused: tuple[dict[str, object], ...] = ()
        self._task = asyncio.get_running_loop().create_task(self._run(script))

    async def _run(self, script: bytes) -> None:
        ended = ExitInfo(ExitKind.TERMINATED, None)
        try:
            # All of its output goes to the listener.
            result = await self._shell.run(script, on_output=self._heard, max_output=0)
            ended = result.exit or ended
            self._refused = tuple(map(asdict, result.denials))
        except HandrailError as error:
            self._heard(Output("stderr", f"{error}\n".encode(), "", 0))
            ended = ExitInfo(ExitKind.LOST, None)
        finally:
            for kind, rest in self._masker.finish():
                self._add(kind, rest)
            self._exit = ended
            self._history.end()

    def _heard(self, output: Output) -> None:
        self._seq, kind = output.seq, OutputKind(output.stream)
        self._add(kind, self._masker.feed(kind, output.data, output.omitted))

    def _add(self, kind: OutputKind, data: bytes) -> None:
        if data:
            self._history.add(kind, data, self._seq)

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        raise WriteFailed("a command of the shell session has no stdin; use tty=true")

    async def close_stdin(self) -> None:
        """Do nothing: its stdin is empty."""

    async def resize(self, rows: int, cols: int) -> None:
        raise ResizeFailed("a command of the shell session has no terminal; use tty=true")

    async def signal(self, name: str) -> None:
        if name != "interrupt":
            raise UsageError(f"a command of the shell session can be interrupted, not sent {name}")
        await self._shell.interrupt()

    async def terminate(self, grace: float = 0.0) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def denied(self) -> Denied:
        return Denied(likely=False, evidence=self._refused)


class SessionGate(OrchestratorGate):
    """A gate that starts commands in one shell session where it can."""

    def __init__(self, orchestrator: Orchestrator, executor: Executor, **options: Any) -> None:
        super().__init__(orchestrator, executor, **options)
        self._shell: AsyncShell | None = None
        self._hidden = NO_SECRETS
        self._key: tuple[object, ...] = ()
        self._last: SessionCommand | None = None
        #: What was answered about hosts for the shell's process.
        self._hosts: NetworkCall | None = None
        self._starting = asyncio.Lock()

    async def start(self, call: ExecCall) -> Started:
        """Decide about a call and evaluate it in the session, or raise what forbids it."""
        if self._shell is not None and self._shell.alive and not call.args.workdir:
            call = replace(call, spawn=replace(call.spawn, cwd=self._shell.cwd))
        flow = self._orchestrator.flow(self.call_of(call))
        attempt = await flow.admit()
        async with self._starting:
            if self._fits(call, flow, attempt):
                return await self._evaluate(call, flow, attempt)
        return await self._start(call, flow, attempt)

    async def _evaluate(self, call: ExecCall, flow: CallFlow, attempt: Attempt) -> Started:
        if self._last is not None and self._last.try_exit_status() is None:
            raise UsageError(_BUSY)
        notes = attempt.notes
        if self._shell is None or not self._shell.alive:
            if self._shell is not None:
                notes = (*notes, _BEGUN_ANEW)
                await self._shell.close()
            self._key = _key(flow, attempt)
            self._shell = await self._begin(call.spawn, flow, attempt)
            self._hosts = flow.hosts
        if self._hosts is not None:
            # All commands of the session have the network of its shell.
            self._hosts.next_call(flow.facts)
            flow.hosts = self._hosts
        script = _at(call) + call.args.cmd.encode()
        self._last = SessionCommand(call.spawn.process_id, self._shell, script, self._hidden)
        self._remember(call.call_id, flow, self._last)
        return Started(self._last, notes)

    def _fits(self, call: ExecCall, flow: CallFlow, attempt: Attempt) -> bool:
        """Whether it may run in the session, which has the sandbox of the settings."""
        args = call.args
        if args.tty or args.shell or args.login:
            return False
        if attempt.sandboxed is not flow.settings.sandbox.restricted:
            return False
        return self._shell is None or not self._shell.alive or self._key == _key(flow, attempt)

    async def _begin(self, spawn: SpawnRequest, flow: CallFlow, attempt: Attempt) -> AsyncShell:
        async def start(argv: list[str], **_: Any) -> AsyncProcess:
            request = replace(
                spawn,
                argv=tuple(argv),
                cwd=flow.settings.cwd,
                process_id=f"{spawn.process_id}-session",
                pipe_stdin=True,
                name="shell session",
            )
            executor = self._executor
            session = await self._orchestrator.start(executor, request, flow, attempt)
            if isinstance(session, MaskedSession):
                # Masked, an end mark might not be one any more.
                self._hidden, session = session.secrets, session.plain
            return AsyncProcess(
                ProcessFollower(
                    session,
                    request.argv,
                    executor.features,
                    sandboxed=attempt.sandboxed,
                    secrets=self._hidden,
                    keep_output=RETENTION_BYTES,
                    network=flow.hosts,
                )
            )

        shell = AsyncShell("bash", start, {}, names_calls=False)
        return await shell._open()  # noqa: SLF001 (for its makers)

    async def close(self) -> None:
        """End the session, and the processes that read and write files for patches."""
        if self._shell is not None:
            await self._shell.close()
        await super().close()


def _key(flow: CallFlow, attempt: Attempt) -> tuple[object, ...]:
    """The options a shell was started with; a command with other options needs another shell."""
    forbidden = forbidden_whole(flow.settings.policy)
    return attempt.sandbox, attempt.network, dict(attempt.env), forbidden


def _at(call: ExecCall) -> bytes:
    """Go to the directory that was decided about, and keep ``$?``.

    Another call may have left it since, and ``PWD``, by which it was known, is a variable like any
    other.  One that was removed after the shell went there is no failure.
    """
    place = shell_script.quoted(os.fsencode(call.spawn.cwd))
    go = b"builtin cd -- " + place
    if not call.args.workdir:
        go = b"[[ . -ef %b ]] || %b 2>/dev/null || [[ ! -d %b ]]" % (place, go, place)
    was = b"case $- in (*e*) ;; (*) __handrail_was $__handrail;; esac"
    return b"__handrail=$?; %b || return; %b; " % (go, was)
