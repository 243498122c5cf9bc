"""Runs the commands of an agent in one shell session, so that each finds the state of the last.

A command that needs a terminal, a sandbox of its own or another shell gets a process of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from handrail.agent.orchestrator_gate import OrchestratorGate
from handrail.errors import HandrailError, ResizeFailed, UsageError, WriteFailed
from handrail.executor.base import Denied, OutputKind, SpawnRequest
from handrail.executor.buffered_session import BufferedSession
from handrail.orchestrator.call_flow import Attempt, CallFlow
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.unified_exec.gate import ExecCall, Started
from handrail.workspace import shell_script
from handrail.workspace.process import AsyncProcess
from handrail.workspace.process_follower import ProcessFollower
from handrail.workspace.result import Output
from handrail.workspace.shell import AsyncShell

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

    def __init__(self, process_id: str, shell: AsyncShell, script: bytes) -> None:
        super().__init__(process_id)
        self._shell = shell
        self._task = asyncio.get_running_loop().create_task(self._run(script))

    async def _run(self, script: bytes) -> None:
        ended = ExitInfo(ExitKind.TERMINATED, None)
        try:
            # All of its output goes to the listener.
            result = await self._shell.run(script, on_output=self._heard, max_output=0)
            ended = result.exit or ended
        except HandrailError as error:
            self._heard(Output("stderr", f"{error}\n".encode(), "", 0))
            ended = ExitInfo(ExitKind.LOST, None)
        finally:
            self._exit = ended
            self._history.end()

    def _heard(self, output: Output) -> None:
        self._history.add(OutputKind(output.stream), output.data, output.seq)

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
        return Denied(likely=False)


class SessionGate(OrchestratorGate):
    """A gate that starts commands in one shell session where it can."""

    _shell: AsyncShell | None = None
    _key: tuple[object, ...] = ()
    _last: SessionCommand | None = None

    async def start(self, call: ExecCall) -> Started:
        """Decide about a call and evaluate it in the session, or raise what forbids it."""
        if self._shell is not None and self._shell.alive and not call.args.workdir:
            call = replace(call, spawn=replace(call.spawn, cwd=self._shell.cwd))
        course = self._orchestrator.course(self.call_of(call))
        attempt = await course.admit()
        if not self._fits(call, course, attempt):
            return await self._start(call, course, attempt)
        if self._last is not None and self._last.try_exit_status() is None:
            raise UsageError(_BUSY)
        notes = attempt.notes
        if self._shell is None or not self._shell.alive:
            if self._shell is not None:
                notes = (*notes, _BEGUN_ANEW)
                await self._shell.close()
            self._key = _key(attempt)
            self._shell = await self._begin(call.spawn, course, attempt)
        script = call.args.cmd.encode()
        if call.args.workdir:
            script = b"cd -- %b || return\n" % shell_script.quoted(call.spawn.cwd.encode()) + script
        self._last = SessionCommand(call.spawn.process_id, self._shell, script)
        self._remember(call.call_id, course, self._last)
        return Started(self._last, notes)

    def _fits(self, call: ExecCall, course: CallFlow, attempt: Attempt) -> bool:
        """Whether it may run in the session, which has the sandbox of the settings."""
        args = call.args
        if args.tty or args.shell or args.login:
            return False
        if attempt.sandboxed is not course.settings.sandbox.restricted:
            return False
        return self._shell is None or not self._shell.alive or self._key == _key(attempt)

    async def _begin(self, spawn: SpawnRequest, course: CallFlow, attempt: Attempt) -> AsyncShell:
        async def start(argv: list[str], **_: Any) -> AsyncProcess:
            request = replace(
                spawn,
                argv=tuple(argv),
                cwd=course.settings.cwd,
                process_id=f"{spawn.process_id}-session",
                pipe_stdin=True,
                name="shell session",
            )
            executor = self._executor
            session = await self._orchestrator.start(executor, request, course, attempt)
            sandboxed = attempt.sandboxed
            return AsyncProcess(
                ProcessFollower(session, request.argv, executor.features, sandboxed=sandboxed)
            )

        return await AsyncShell("bash", start, {}).open()

    async def close(self) -> None:
        """End the session, and the processes that read and write files for patches."""
        if self._shell is not None:
            await self._shell.close()
        await super().close()


def _key(attempt: Attempt) -> tuple[object, ...]:
    return attempt.sandbox, attempt.network, dict(attempt.env)
