"""An executor with limits and loopback of a workspace, and output without its secrets.

So neither a model, a listener nor a transcript gets one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
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
from handrail.network.managed.start import NetworkRequest
from handrail.process.exit_status import ExitInfo
from handrail.secret_masks import Secrets, StreamMasker
from handrail.workspace.asynchronous import AsyncWorkspace
from handrail.workspace.executor_features import check_limits


async def executor_of(workspace: AsyncWorkspace) -> Executor:
    """The executor of a workspace, with what that has for its commands; raises what it raises."""
    executor = await workspace.executor()
    return _WorkspaceExecutor(executor, workspace)


def shared_by(executor: Executor, workspace: AsyncWorkspace) -> Executor:
    """An executor of the caller's own, for the commands of a workspace that stands on it."""
    return _WorkspaceExecutor(executor, workspace)


class _WorkspaceExecutor(WrappedExecutor):
    def __init__(self, executor: Executor, workspace: AsyncWorkspace) -> None:
        super().__init__(executor)
        self._secrets = workspace.variables.secrets
        self._limits = workspace.limits
        self._loopback = f"{workspace.id}-"

    async def spawn(self, request: SpawnRequest) -> ExecSession:
        request = replace(request, loopback=self._loopback)
        if self._limits is not None:
            check_limits(self.features)
            request = replace(request, limits=self._limits)
        return self._masked(await super().spawn(request))

    async def attach(self, process_id: str) -> ExecSession:
        return self._masked(await super().attach(process_id))

    def _masked(self, session: ExecSession) -> ExecSession:
        return MaskedSession(session, self._secrets) if self._secrets else session


class MaskedSession(ExecSession):
    """A process of another executor, with the secrets in its output masked."""

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

    async def refused_hosts(self) -> tuple[Mapping[str, object], ...]:
        return await self.plain.refused_hosts()

    async def update_network(self, network: NetworkRequest) -> None:
        await self.plain.update_network(network)

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
        masker: StreamMasker[OutputKind] = StreamMasker(secrets)
        last = 0
        async for event in self._plain:
            last, data = event.seq, masker.feed(event.kind, event.data, event.omitted)
            if data or event.omitted:
                yield OutputEvent(event.kind, data, last, event.omitted)
        for kind, rest in masker.finish():
            yield OutputEvent(kind, rest, last)
