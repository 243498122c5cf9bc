"""A server from its start to its end: listen, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from handrail.config import STOP_SIGNALS, ServerSettings
from handrail.errors import RpcError, UsageError
from handrail.filesystem.pool import FilePool
from handrail.process.keeper_program import KeeperHandle
from handrail.process.launcher import Launcher
from handrail.protocol.envelope import INTERNAL_ERROR
from handrail.protocol.environment import EnvironmentInfo
from handrail.protocol.methods import METHODS
from handrail.server import environment
from handrail.server.auth import Authenticator, Principal
from handrail.server.connection import Connection
from handrail.server.front import Front
from handrail.server.handlers import HANDLERS
from handrail.server.http_client import HttpClient
from handrail.server.measures import Measures
from handrail.server.rows import Rows
from handrail.server.sessions import Sessions
from handrail.telemetry import prometheus
from handrail.transport import websocket
from handrail.transport.base import CLOSE_GOING_AWAY, CLOSE_RESTART, Receiver
from handrail.transport.websocket import WebSocketListener

if TYPE_CHECKING:
    from handrail.sandbox.select import Sandbox
    from handrail.server.confinement import Confinements
    from handrail.server.file_helpers import FileHelper
    from handrail.telemetry.otel import Export

log = logging.getLogger(__name__)

#: How long an orderly stop may take beyond the grace of the children.
STOP_SECONDS = 5.0


class Server:
    """The sessions, the keeper's link and the connections of one server."""

    def __init__(
        self,
        settings: ServerSettings,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.launcher = launcher
        self.measures = Measures(tuple(METHODS))
        self.rows = Rows(HANDLERS, self.measures)
        self.export = self._start_export() if settings.otel else None
        self.sessions = Sessions(
            launcher, loop, self.measures, ttl=settings.detach_ttl, retention=settings.retention
        )
        self.own_environment = dict(os.environ)
        self.pool = FilePool()
        self.http_client = HttpClient(self.own_environment)
        self._confinements: Confinements | None = None
        self.ending_helpers: set[FileHelper] = set()
        self._sandbox: Sandbox | None = None
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self.draining = False
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._info: EnvironmentInfo | None = None
        launcher.on_lost = self._keeper_lost

    def environment_info(self) -> EnvironmentInfo:
        if self._info is None:
            self._info = environment.describe(
                self.own_environment, header_env=bool(self.settings.http_header_env)
            )
        return self._info

    @property
    def confinements(self) -> Confinements:
        """The plans of file calls under a sandbox."""
        if self._confinements is None:
            from handrail.server.confinement import Confinements

            self._confinements = Confinements(self.sandbox)
        return self._confinements

    @property
    def sandbox(self) -> Sandbox:
        """What contains commands here; made, and looked after, when it is first asked for."""
        if self._sandbox is None:
            from handrail.sandbox.select import Sandbox

            self._sandbox = Sandbox()
        return self._sandbox

    def admit(self) -> None:
        """Refuse new processes once the server is on its way out."""
        if self.draining:
            raise RpcError(INTERNAL_ERROR, "the server is stopping and starts nothing any more")

    def spawn_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Work that outlives the request that asked for it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.measures.connected(connection.transport.kind)

    def closed(self, connection: Connection, why: str) -> None:
        self._connections.discard(connection)
        self.measures.disconnected(connection.transport.kind)
        log.info("connection of %s ended: %s", connection.transport.peer, why)
        if connection.transport.kind == "stdio":
            self.stopping.set()

    def accept(self, principal: Principal) -> Receiver:
        """A connection for somebody who may connect."""
        return Connection(self, f"{principal.mode.value}:{principal.issuer}:{principal.subject}")

    def _keeper_lost(self) -> None:
        log.error("the keeper is gone; its children are ended and their exits reported as lost")
        self.exit_code = 1
        for child in self.sessions.children():
            child.keeper_lost()
        self.stopping.set()

    async def stop(self) -> None:
        """Drain, and end the children or leave them to the keeper."""
        self.draining = True
        keep = self.settings.on_stop == "keep"
        for connection in list(self._connections):
            if keep:
                connection.go_away(CLOSE_RESTART, "restarting; resume with the session id")
            else:
                connection.go_away(CLOSE_GOING_AWAY, "the server stops")
        if keep:
            self.launcher.close()
            return
        stdio = self.settings.listen.kind == "stdio"
        await self.sessions.end_all(0.0 if stdio else self.settings.stop_grace)
        for task in list(self._tasks):
            task.cancel()
        for helper in list(self.ending_helpers):
            await helper.ended()
        self.pool.close()
        await self.http_client.close()
        await self.launcher.stop()
        if self._sandbox is not None:
            self._sandbox.close()
        if self.export is not None:
            await asyncio.to_thread(self.export.shutdown)

    def _start_export(self) -> Export:
        from handrail.telemetry import otel  # an extra, and only when it was asked for

        return otel.start(self.measures.registry)


async def serve(settings: ServerSettings, auth: Authenticator, keeper: KeeperHandle) -> int:
    """Run one server until it is told to stop; the exit code."""
    loop = asyncio.get_running_loop()
    launcher = Launcher(keeper, loop)
    server = Server(settings, launcher, loop)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, server.stopping.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    listener: WebSocketListener | None = None
    try:
        await launcher.hello()
        listener = await _listen(server, auth)
        await server.stopping.wait()
    finally:
        if listener is not None:
            listener.close()
        try:
            async with asyncio.timeout(settings.stop_grace + STOP_SECONDS):
                await server.stop()
                if listener is not None:
                    await listener.wait_closed()
        except TimeoutError:
            log.error("the keeper does not answer; leaving its children to it")
            server.exit_code = 1
            launcher.close()
    return server.exit_code


async def _listen(server: Server, auth: Authenticator) -> WebSocketListener | None:
    listen = server.settings.listen
    if listen.kind == "stdio":
        from handrail.transport.stdio import open_stdio

        await open_stdio(Connection(server, "stdio"))
        return None
    front = Front(
        auth,
        lambda: prometheus.render(server.measures.registry),
        server.accept,
        listen.host or "localhost",
        allowed_hosts=server.settings.allowed_hosts,
        allowed_origins=server.settings.allowed_origins,
    )
    try:
        if listen.kind == "unix":
            from handrail.transport import unix_socket

            unix = await unix_socket.listen(
                listen.path, front, accept=lambda who: Connection(server, f"uid:{who.uid}")
            )
            _announce(f"unix:{listen.path}")
            return unix
        tcp = await websocket.listen(listen.host, listen.port, front)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {listen.host}:{listen.port}: {error.strerror or error}"
        ) from None
    host, port = tcp.sockname[:2]  # type: ignore[index]
    _announce(f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}")
    return tcp


def _announce(url: str) -> None:
    """The one line on stdout, for whoever started us."""
    try:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
    except OSError as error:
        raise UsageError(f"cannot tell the address on stdout: {error.strerror}") from None
