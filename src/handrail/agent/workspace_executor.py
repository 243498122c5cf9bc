"""An executor with the limits of a workspace, and output without its secrets.

So neither a model, a listener nor a transcript gets one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from handrail.executor.base import (
    Denied,
    ExecSession,
    Executor,
    OutputEvent,
    OutputKind,
    SpawnRequest,
    Subscription,
    WaitOutcome,
    WrappedExecutor,
)
from handrail.process.exit_status import ExitInfo
from handrail.process.spec import Limits
from handrail.workspace.asynchronous import AsyncWorkspace
from handrail.workspace.offered import check_limits
from handrail.workspace.secrets import Masker, Secrets


async def executor_of(workspace: AsyncWorkspace) -> Executor:
    """The executor of a workspace, with what that has for its commands; raises what it raises."""
    executor = await workspace.executor()
    secrets, limits = workspace.variables.secrets, workspace.limits
    return _WorkspaceExecutor(executor, secrets, limits) if secrets or limits else executor


class _WorkspaceExecutor(WrappedExecutor):
    def __init__(self, executor: Executor, secrets: Secrets, limits: Limits | None) -> None:
        super().__init__(executor)
        self._secrets = secrets
        self._limits = limits

    async def spawn(self, request: SpawnRequest) -> ExecSession:
        if self._limits is not None:
            check_limits(self.features)
            request = replace(request, limits=self._limits)
        return self._masked(await super().spawn(request))

    async def attach(self, process_id: str) -> ExecSession:
        return self._masked(await super().attach(process_id))

    def _masked(self, session: ExecSession) -> ExecSession:
        return MaskedSession(session, self._secrets) if self._secrets else session


class MaskedSession(ExecSession):
    """Another session with masked output."""

    def __init__(self, session: ExecSession, secrets: Secrets) -> None:
        self.process_id = session.process_id
        self.detached = session.detached
        #: The session itself, with its output as it is.
        self.plain = session
        self.secrets = secrets

    def subscribe_output(self, *, paced: bool = False) -> Subscription:
        return _MaskedOutput(self.plain.subscribe_output(paced=paced), self.secrets)

    def keep_output(self, limit: int) -> None:
        self.plain.keep_output(limit)

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        await self.plain.write(data, timeout)

    async def close_stdin(self) -> None:
        await self.plain.close_stdin()

    async def resize(self, rows: int, cols: int) -> None:
        await self.plain.resize(rows, cols)

    async def signal(self, name: str) -> None:
        await self.plain.signal(name)

    async def terminate(self, grace: float = 0.0) -> None:
        await self.plain.terminate(grace)

    async def wait(self) -> ExitInfo:
        return await self.plain.wait()

    def try_exit_status(self) -> ExitInfo | None:
        return self.plain.try_exit_status()

    async def wait_closed(self) -> None:
        await self.plain.wait_closed()

    async def wait_for(self, *patterns: str | bytes, **until: Any) -> WaitOutcome:
        found = await self.plain.wait_for(*patterns, **until)
        return replace(found, match=self.secrets.masked(found.match))

    async def denied(self) -> Denied:
        return await self.plain.denied()

    @property
    def out_of_reach(self) -> bool:
        return self.plain.out_of_reach

    def end_later(self) -> None:
        self.plain.end_later()


class _MaskedOutput:
    """A subscription with masked output."""

    def __init__(self, plain: Subscription, secrets: Secrets) -> None:
        self._plain = plain
        self._events = self._masked(secrets)

    def __aiter__(self) -> _MaskedOutput:
        return self

    async def __anext__(self) -> OutputEvent:
        return await anext(self._events)

    def close(self) -> None:
        """Have nothing wait for this reader any more."""
        self._plain.close()

    async def _masked(self, secrets: Secrets) -> AsyncGenerator[OutputEvent]:
        maskers = {kind: Masker(secrets) for kind in OutputKind}
        last = 0
        async for event in self._plain:
            last, data = event.seq, maskers[event.kind].feed(event.data)
            if data or event.omitted:
                yield OutputEvent(event.kind, data, last, event.omitted)
        for kind, masker in maskers.items():
            if rest := masker.finish():
                yield OutputEvent(kind, rest, last)
