"""The server's life: listen, drain, stop, hand over."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from handrail.errors import HandrailError, KeeperLost, RpcError
from handrail.filesystem import own_processes, stage_names
from handrail.filesystem.pool import FilePool
from handrail.process.env_policy import BuiltEnvironments
from handrail.process.keeper_client import silent_keeper
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import KeeperHandle, start_keeper
from handrail.process.output.spool import can_splice
from handrail.process.recovery import release
from handrail.process.stdin.log import can_send
from handrail.protocol.envelope import INTERNAL_ERROR
from handrail.protocol.environment import EnvironmentInfo
from handrail.protocol.methods import METHODS
from handrail.server import environment, quota
from handrail.server.auth.tokens import Authenticator, Principal
from handrail.server.connection import Connection
from handrail.server.listener import ListenSocket, listen
from handrail.server.methods.handlers import MethodLookup
from handrail.server.metrics import ServerMetrics
from handrail.server.recovery import unused_state_dirs, upgrade_server
from handrail.server.recovery.adopt import adopt, renew_keeper
from handrail.server.recovery.placeholder_sweep import PlaceholderSweep
from handrail.server.recovery.restart_keeper import KeeperRestart
from handrail.server.recovery.state_dir import StateDir
from handrail.server.results import Results
from handrail.server.session import Session
from handrail.server.sessions import Sessions
from handrail.server_settings import STOP_SIGNALS, ServerSettings
from handrail.transport.base import CLOSE_GOING_AWAY, CLOSE_RESTART, Receiver
from handrail.transport.websocket import WebSocketListener

if TYPE_CHECKING:
    from handrail.network.managed.porter_life import PorterLife
    from handrail.process.env_policy import EnvPolicy
    from handrail.protocol.process import EnvPolicyParams
    from handrail.sandbox.choose_sandbox import Sandbox
    from handrail.sandboxed_files.plan import FileSandboxes
    from handrail.sandboxed_files.pool import FileHelper
    from handrail.server.http_out.client import HttpClient
    from handrail.server.workspaces.registry import Workspaces
    from handrail.telemetry.otel import Export

log = logging.getLogger(__name__)

#: How long an orderly stop may take beyond the grace period of the children.
STOP_SECONDS = 5.0
#: How long a hand-over waits for processes that are being started.
_STARTS_SECONDS = 2.0


class Server:
    """The sessions, the keeper link and the connections of one server."""

    def __init__(
        self,
        settings: ServerSettings,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.launcher = launcher
        self.measures = ServerMetrics(tuple(METHODS))
        self.rows = MethodLookup(self.measures)
        self.export = self._start_export() if settings.otel else None
        self.results = Results(loop, settings.results, settings.state_dir)
        self.sessions = Sessions(
            launcher,
            loop,
            self.measures,
            ttl=settings.detach_ttl,
            retention=settings.retention,
            results=self.results,
        )
        self.started_at = time.time()
        #: Without the variable that only configures our keepers.
        self.own_environment = {n: v for n, v in os.environ.items() if n != "HANDRAIL_TREES"}
        self.environments = BuiltEnvironments(self.own_environment)
        #: What the last start asked for of its environment, and that as it is applied.
        self.last_policy: tuple[EnvPolicyParams, EnvPolicy] | None = None
        #: The workspaces that it holds for a fleet.
        self.workspaces: Workspaces | None = None
        self.pool = FilePool()
        self._http_client: HttpClient | None = None
        self._file_sandboxes: FileSandboxes | None = None
        self.ending_helpers: set[FileHelper] = set()
        self._sandbox: Sandbox | None = None
        self.placeholders = PlaceholderSweep(loop)
        self._network: PorterLife | None = None
        self.stopping = asyncio.Event()
        self.exit_code = 0
        self.draining = False
        self._ends_everything = False
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._info: EnvironmentInfo | None = None
        self._retained = quota.Retained(self.sessions.tables)
        #: The socket on which the next server waits for *go*, during an upgrade.
        self.successor: socket.socket | None = None
        #: True until the server serves: if its start fails, the keeper's processes are left to the
        #: next one.
        self.failed = False
        launcher.link.on_lost = self.keeper_lost
        _ = can_splice(), can_send()  # probe now, while fds are free

    def environment_info(self) -> EnvironmentInfo:
        if self._info is None:
            self._info = environment.describe(
                self.own_environment,
                self.launcher.abilities,
                header_env=bool(self.settings.http_header_env),
                waits=not self.settings.strict_lanes,
                workspaces=self.workspaces is not None,
            )
        return self._info

    @property
    def http_client(self) -> HttpClient:
        """The client of http/request."""
        if self._http_client is None:
            from handrail.server.http_out.client import HttpClient

            self._http_client = HttpClient(self.own_environment)
        return self._http_client

    @property
    def file_sandboxes(self) -> FileSandboxes:
        """The plans of sandboxed file calls."""
        if self._file_sandboxes is None:
            from handrail.sandboxed_files.plan import FileSandboxes

            self._file_sandboxes = FileSandboxes(self.sandbox)
        return self._file_sandboxes

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of this server; made on first use."""
        if self._sandbox is None:
            from handrail.sandbox.choose_sandbox import Sandbox

            self._sandbox = Sandbox()
        return self._sandbox

    @property
    def network(self) -> PorterLife:
        """The managed networks of this server; made on first use."""
        if self._network is None:
            from handrail.network.managed.porter_life import PorterLife

            environ = self.own_environment
            self._network = PorterLife(self.launcher, self.loop, environ, self.measures)
        return self._network

    def porter(self) -> tuple[int, int, dict[bytes, int]] | None:
        """The number, pid and descriptors of the porter, for a new keeper; None: there is none."""
        return None if self._network is None else self._network.holdings()

    def admit(self, session: Session) -> None:
        """Refuse a new process while the server drains, or when a quota is used up."""
        if self.draining:
            raise RpcError(INTERNAL_ERROR, "the server is stopping and starts no more processes")
        bounds = self.settings.quota
        retained = self._retained.at(self.loop.time())
        refusal = quota.refusal(bounds, session.table, self.measures.running, retained)
        if refusal is not None:
            raise RpcError(INTERNAL_ERROR, refusal)

    def spawn_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a task that outlives the request that started it."""
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
        """Make the receiver for an authenticated connection."""
        return Connection(self, principal.text, principal.tenant)

    def metrics_text(self, principal: Principal) -> bytes:
        """What is counted, for Prometheus; of tenants only the client's own, if it has one."""
        from handrail.telemetry import prometheus

        if self.workspaces is not None:
            self.workspaces.count()
        return prometheus.render(self.measures.registry, principal.tenant)

    def open_workspaces(self) -> None:
        """Read the records of workspaces, if there is a directory for them; raises UsageError."""
        if self.settings.workspaces is not None:
            from handrail.server.workspaces.registry import Workspaces

            self.workspaces = Workspaces(self, self.settings.workspaces)

    def end_everything(self) -> None:
        """Stop, and leave nothing for a next server."""
        self._ends_everything = True
        self.stopping.set()

    def keeper_lost(self) -> None:
        """Give up: the keeper is gone and no other can be started."""
        log.error("no keeper: children are ended and their exits reported as lost")
        self.exit_code = 1
        self.launcher.link.give_up()
        children = self.sessions.children()
        release.kill(*children)
        for child in children:
            child.ending.exit_unknown()  # there will be no keeper to ask for its status
        self.stopping.set()

    async def stop(self) -> None:
        """Drain, and end the children or leave them to the keeper."""
        self.draining = True
        keep = self.settings.on_stop == "keep" and not self._ends_everything
        keep = keep or self.successor is not None or self.failed
        if keep and self._network is not None:
            # First: a client that this stop disconnects has not answered its questions.
            self._network.park()
        for connection in list(self._connections):
            if keep:
                connection.transport.close(CLOSE_RESTART, "restarting; resume with the session id")
            else:
                connection.transport.close(CLOSE_GOING_AWAY, "the server stops")
        workspaces = self.workspaces
        if workspaces is not None:
            await (workspaces.settled() if keep else workspaces.end_all())
            workspaces.close()
        if keep:
            # The children are left to the keeper: check first that it is alive.
            await self.launcher.link.at_hand()
            await self.results.park()
            for child in self.sessions.children():
                release.park(child)
            if self._network is not None:
                self._network.close()
            self.launcher.close()
            if self.successor is not None:
                upgrade_server.go(self.successor)
            return
        stdio = self.settings.listen.kind == "stdio"
        await self.sessions.end_all(0.0 if stdio else self.settings.stop_grace)
        self.results.close()
        for task in list(self._tasks):
            task.cancel()
        for helper in list(self.ending_helpers):
            await helper.ended()
        self.pool.close()
        if self._http_client is not None:
            await self._http_client.close()
        if self._network is not None:
            self._network.close()
        await self.launcher.stop()
        if self._sandbox is not None:
            self._sandbox.close()
        await self.placeholders.finish()
        if self.export is not None:
            await asyncio.to_thread(self.export.shutdown)

    def _start_export(self) -> Export:
        from handrail.telemetry import otel  # an optional extra, imported only when enabled

        return otel.start(self.measures.registry)


async def serve(
    settings: ServerSettings,
    auth: Authenticator,
    keeper: KeeperHandle | None,
    state: StateDir | None = None,
    heir: upgrade_server.Inheritance | None = None,
) -> int:
    """Run one server until it is told to stop; returns the exit code."""
    loop = asyncio.get_running_loop()
    if heir is not None and state is not None:
        if not await heir.take(loop):
            return 1  # the previous server continues
        keeper = state.keeper(settings.orphan_ttl)
    assert keeper is not None  # noqa: S101 (given, or found just now)
    launcher = Launcher(keeper, loop)
    own_processes.register(lambda: launcher.keeper_pid)
    server = Server(settings, launcher, loop)
    if state is not None:
        server.sessions.temporaries.directory = state.fd
        stage_names.keep_journal(state.fd)
        server.results.state_dir = state.path

    def new_keeper() -> KeeperHandle:
        return start_keeper() if state is None else state.keeper(settings.orphan_ttl)

    def at_work(mark: int) -> None:
        if state is not None:
            state.at_work(mark)

    loss = KeeperRestart(
        launcher, server.sessions, new_keeper, server.keeper_lost, at_work, server.porter
    )
    launcher.link.on_lost = None  # until the keeper has answered hello
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, server.stopping.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    listener: WebSocketListener | None = None
    server.failed = keeper.found
    try:
        server.open_workspaces()
        given = None if heir is None else heir.listener
        listening = ListenSocket(settings.listen, given)
        leased = await _unless_stopped(server, _take_lease(server, keeper, state, listening))
        if leased is None:
            if state is not None:
                state.ready()  # to be told to stop is no crash
            return server.exit_code
        keeper = leased
        launcher.link.on_lost = loss.happened
        at_work(launcher.mark)
        if not launcher.link.alive:
            loss.happened()
        elif keeper.found and state is not None:
            known = set(launcher.marks.values())
            await asyncio.to_thread(state.end_others, launcher.mark, known)
        if server.workspaces is not None:
            server.workspaces.begin(found=keeper.found)
        listener = await listen(server, auth, listening.sock, state, announce=heir is None)
        server.failed = False
        server.results.sweep_later()
        if state is not None:
            server.placeholders.soon()
        if state is not None and listener is not None:
            offer = upgrade_server.Upgrade(state.path, state.lock, listener.fileno)
            loop.add_signal_handler(
                upgrade_server.UPGRADE_SIGNAL, lambda: server.spawn_task(_hand_over(server, offer))
            )
        else:
            signal.signal(upgrade_server.UPGRADE_SIGNAL, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (upgrade_server.UPGRADE_SIGNAL,))
        if heir is not None:
            await renew_keeper(launcher)
        await server.stopping.wait()
    except HandrailError:
        if state is not None:
            state.ready()  # an orderly refusal is no crash
        raise
    finally:
        if listener is not None:
            if server.successor is None:
                listener.close()
            else:
                listener.leave()
        try:
            async with asyncio.timeout(settings.stop_grace + STOP_SECONDS):
                await server.stop()
                if listener is not None:
                    await listener.wait_closed()
            if state is not None and launcher.link.ended:
                state.done()
                unused_state_dirs.retire()
        except TimeoutError:
            if server.successor is None:
                log.error("the keeper does not answer; leaving its children to it")
                server.exit_code = 1
            launcher.close()
    return server.exit_code


async def _take_lease(
    server: Server, keeper: KeeperHandle, state: StateDir | None, listening: ListenSocket
) -> KeeperHandle:
    """Take the lease of a keeper, adopt its processes, and return the keeper that answered.

    A keeper that was found may just have been killed; then another one is started.
    """
    launcher = server.launcher
    for last in (False, False, True):
        try:
            with silent_keeper.reported(keeper.sock, 0 if keeper.found else keeper.pid):
                await launcher.hello()
                log.info("trees are ended by %s", launcher.abilities.trees)
                listening.open()
                if keeper.found:
                    swept = server.placeholders.soon
                    await adopt(
                        server.sessions, launcher, server.loop, lambda: server.network, swept
                    )
            break
        except KeeperLost:
            if last or launcher.link.alive or state is None or not keeper.found:
                raise
            log.error("the keeper that was found is gone; another is started")
            keeper = state.keeper_after_loss(server.settings.orphan_ttl)
            server.failed = keeper.found
            launcher.relink(keeper)
            launcher.restored()
    return keeper


async def _unless_stopped(
    server: Server, work: Coroutine[Any, Any, KeeperHandle]
) -> KeeperHandle | None:
    """Await ``work``, which may wait for a silent keeper; None if the server is to stop first."""
    task = server.loop.create_task(work)
    stopped = server.loop.create_task(server.stopping.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,))
        return None
    finally:
        stopped.cancel()


async def _hand_over(server: Server, offer: upgrade_server.Upgrade) -> None:
    """Start the next server; when it is ready, stop this one and leave the children running."""
    control = await offer.prepare(server.loop)
    if control is None:
        return
    server.draining = True
    # A start that is under way is answered by this server, which received the request.
    deadline = server.loop.time() + _STARTS_SECONDS
    while server.sessions.starting and server.loop.time() < deadline:  # noqa: ASYNC110 (rare, short)
        await asyncio.sleep(0.005)
    server.successor = control
    server.stopping.set()
