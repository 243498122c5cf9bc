"""The line of one workspace: a session of its node's server that can be parked and taken up again.

It is an ``ExecServerClient`` that tells failures as those of a fleet.  When its recovery window is
over the node is unreachable, and the next call dials once more; the session waits, for a session
in a workspace does not expire.  When the node is lost, every call fails for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from handrail.errors import (
    ExecutorSpawnFailed,
    ExecutorTransportFailed,
    HandrailError,
    RpcError,
    TransportError,
)
from handrail.executor.base import ExecutorFeatures, SpawnRequest
from handrail.executor.client.rpc import CallTimedOut, RpcConnection
from handrail.executor.client.session import ExecServerClient
from handrail.executor.remote import RemoteExecutor
from handrail.executor.remote_session import RemoteSession
from handrail.fleet.errors import NodeLost, NodeUnreachable, WorkspaceGone
from handrail.protocol.envelope import SESSION_CLOSED

if TYPE_CHECKING:
    from handrail.fleet.node import Node


class DataLine(ExecServerClient):
    """One session on one node."""

    def __init__(
        self,
        node: Node,
        *,
        session_id: str | None = None,
        resume_secret: str | None = None,
        adopted: bool = False,
    ) -> None:
        """``adopted``: the session was handed to the control line, and is resumed in its name."""
        settings = node.settings
        super().__init__(
            node.dialer(control=adopted),
            client_name="handrail-fleet",
            session_id=session_id,
            resume_secret=resume_secret,
            recovery_window=settings.recovery_window,
            request_timeout=settings.request_timeout,
        )
        self.node = node
        #: The life of the node's processes in which the session began.
        self.incarnation = node.incarnation
        #: Called after the session was taken up again behind the back of its followers.
        self.on_revival: Callable[[], Awaitable[None]] | None = None
        #: The workspace that its session leaves when the next one is made.
        self.leaving: str | None = None
        #: What an executor on it offers, and the extensions from which that was found.
        self.known_features: tuple[frozenset[str], ExecutorFeatures] | None = None
        self.used = 0.0
        #: The last call was not answered in time, and none since.
        self.unanswered = False
        self._parked = False
        self._reopening = asyncio.Lock()
        self._calls = 0

    async def begin(self) -> None:
        """Open the first connection; raises NodeUnreachable, RpcError, or what the node is."""
        try:
            await self._begin()
        except RpcError:
            await self.leave()
            raise
        except BaseException as error:
            await self.leave()
            if isinstance(error, TransportError | OSError):
                raise await self._explained(error) from error
            raise
        self._up.set()

    async def _open(self, timeout: float | None, *, present: bool = True) -> None:
        await super()._open(timeout, present=present)
        self.unanswered = False

    async def leave(self) -> None:
        """Close the connection; what runs goes on."""
        await self.close(end=False)

    async def settle(self) -> None:
        """Release the workspace that its session was to leave; raises nothing."""
        name, self.leaving = self.leaving, None
        if name is not None:
            await self.node.release(name)

    @property
    def failure(self) -> ExecutorTransportFailed | None:
        """Why the last attempt to reach the session failed; None: it is connected, or parked."""
        return self._failure

    @property
    def connected(self) -> bool:
        """Whether there is a connection now, or none is needed."""
        return self._parked or (self._rpc is not None and self._rpc.gone is None)

    def lose(self, error: ExecutorTransportFailed) -> None:
        """Fail everything for ever."""
        self._failure = None
        rpc, self._rpc = self._rpc, None
        if self._recovering is not None:
            self._recovering.cancel()
        self._fail(error)
        if rpc is not None:
            rpc.abort()

    # --- parking --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no call is open and no process is followed."""
        return not self._routes and not self._calls and self._failure is None

    def park(self) -> None:
        """Give the connection up until the next call."""
        rpc = self._rpc
        if rpc is not None and self.idle and rpc.gone is None:
            self._parked = True
            self._rpc = None
            self._up.clear()
            rpc.close()

    @property
    def parked(self) -> bool:
        return self._parked

    # --- calls ----------------------------------------------------------------------------

    async def call(self, method: str, params: Any, *, prompt: bool = True, **how: Any) -> Any:
        """Make one call; see ``ExecServerClient.call``.

        A prompt one that is not answered in time raises NodeUnreachable.
        """
        self._calls += 1
        try:
            answer = await super().call(method, params, prompt=prompt, **how)
            self.unanswered = False
            return answer
        except CallTimedOut as late:
            if not prompt:
                raise
            self.unanswered = True
            raise self.node.unreachable(str(late)) from late
        except ExecutorTransportFailed as error:
            raise self._as_fleet(error) from error
        except RpcError as error:
            if error.message != SESSION_CLOSED:
                raise
            # Ended with its workspace, by another driver: the server closes no connection for that.
            gone = await self._explained(error)
            self.lose(gone)
            raise gone.again() from error
        finally:
            self._calls -= 1
            self.used = asyncio.get_running_loop().time()

    async def probe(self, seconds: float) -> None:
        """Find out whether the connection still carries anything; if not it is dialed anew."""
        rpc = self._rpc
        if rpc is None or rpc.gone is not None or self._parked:
            return
        try:
            await rpc.call("environment/status", {}, timeout=seconds)
        except CallTimedOut as late:
            if rpc.silent:
                rpc.drop(f"{late}, and nothing else was heard")
        except HandrailError:
            pass  # the connection has ended, or answers: both are known without us

    async def reconnect(self) -> None:
        """Drop the connection and open another one."""
        async with self._reopening:
            if isinstance(self._failure, NodeLost | WorkspaceGone):
                raise self._failure.again()
            rpc, self._rpc = self._rpc, None
            if self._recovering is not None:
                self._recovering.cancel()
                await asyncio.gather(self._recovering, return_exceptions=True)
            self._up.clear()
            if rpc is not None:
                rpc.abort()
            await self._open_again()

    async def _connection(self, method: str, deadline: float | None) -> RpcConnection:
        if self._parked or isinstance(self._failure, NodeUnreachable):
            async with self._reopening:
                if self._parked or isinstance(self._failure, NodeUnreachable):
                    await self._open_again()
        return await super()._connection(method, deadline)

    async def _open_again(self) -> None:
        failed = self._failure is not None
        if (lost := self.node.lost(self.incarnation)) is not None:
            self._failure = lost
            raise lost.again()
        try:
            await self._begin()
        except (HandrailError, OSError) as error:
            self._failure = await self._explained(error)
            self._parked = False
            raise self._failure.again() from error
        self._failure = None
        self._parked = False
        self._up.set()
        if failed:
            if self.on_revival is not None:
                await self.on_revival()
            return
        rpc = self._rpc
        if rpc is not None:
            for route in list(self._routes.values()):
                await route.catch_up(rpc)

    # --- failures -------------------------------------------------------------------------

    async def _unrecovered(self, why: str, error: Exception) -> ExecutorTransportFailed:
        return await self._explained(error)

    async def _explained(self, error: BaseException) -> ExecutorTransportFailed:
        """The error of a workspace whose session could not be reached."""
        if (lost := self.node.lost(self.incarnation)) is not None:
            return lost
        if isinstance(error, RpcError):
            # The server does not have the session: it is another server, or the lease is over.
            await self.node.confirm()
            if (lost := self.node.lost(self.incarnation)) is not None:
                return lost
            return WorkspaceGone(f"the workspace on node {self.node.id} is gone: {error}")
        return self.node.unreachable(str(error))

    def _as_fleet(self, error: ExecutorTransportFailed) -> ExecutorTransportFailed:
        if isinstance(error, NodeLost | NodeUnreachable | WorkspaceGone):
            return error
        return self.node.lost(self.incarnation) or self.node.unreachable(error.detail)


class FleetExecutor(RemoteExecutor):
    """Processes of a workspace; a node that is lost is told as that."""

    client: DataLine

    def __init__(self, line: DataLine) -> None:
        # Without a lag of its own: a process goes on while no driver reads.
        super().__init__(line, request_timeout=line.node.settings.request_timeout, on_lag=None)

    @property
    def features(self) -> ExecutorFeatures:
        """What the server offers, with the temporary directory of the workspace at its own path."""
        client = self.client
        if client.known_features is None or client.known_features[0] is not client.extensions:
            found = replace(super().features, private_tmp=False)
            client.known_features = client.extensions, found
        return client.known_features[1]

    async def spawn(self, request: SpawnRequest) -> RemoteSession:
        """Start one process; raises NodeLost or NodeUnreachable too."""
        try:
            return await super().spawn(request)
        except ExecutorSpawnFailed as error:
            cause = error.__cause__
            if isinstance(cause, ExecutorTransportFailed):
                raise cause from None
            raise
