"""Processes of this machine, on ``process/`` directly: no JSON, no socket.

A private keeper is started with the first process and shared by all that follow; it ends with
the executor, also when this program dies, and takes every process along.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import weakref
from collections.abc import Collection, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from handrail.errors import (
    ExecutorSpawnFailed,
    HandrailError,
    KeeperLost,
    ProcessExists,
    ProcessUnknown,
    SandboxError,
    SandboxUnavailable,
    SpawnFailed,
    SpawnUnenforceable,
    UsageError,
)
from handrail.executor.argument_checks import check_sandbox
from handrail.executor.base import (
    Executor,
    ExecutorFeatures,
    LoopbackStream,
    Place,
    SpawnRequest,
)
from handrail.executor.local_environment import LocalEnvironment
from handrail.executor.local_files import LocalFiles
from handrail.executor.local_session import LocalSession
from handrail.process.child import Child
from handrail.process.child_end import DRAIN_SECONDS
from handrail.process.default_shell import default_shell
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import start_keeper
from handrail.process.recovery import release, tag_kill
from handrail.process.spec import ProcessSpec
from handrail.process.starting import StartCancelled, Starting
from handrail.process.table import ProcessTable

if TYPE_CHECKING:
    from handrail.executor.local_network import LocalNetwork
    from handrail.executor.local_sandbox import LocalSandbox
    from handrail.filesystem.pool import FilePool
    from handrail.network.managed.process import ManagedProcess
    from handrail.sandbox.profile import Intent
    from handrail.sandboxed_files.mount_view import MountView
    from handrail.sandboxed_files.pool import FileHelper

T = TypeVar("T")

#: How long a closed process keeps its id; its output is kept by its session.
RETENTION_SECONDS = 0.5
_START_ERRORS = (SpawnFailed, ProcessExists, KeeperLost, StartCancelled, SandboxError)
_FEATURES = ExecutorFeatures(
    local=True,
    timeouts=True,
    limits=True,
    watch_denials=True,
    private_tmp=True,
    network=True,
    loopback=True,
)
#: How long ``close`` waits for what it has killed.
_END_SECONDS = 5.0


class LocalExecutor(Executor):
    """Starts processes on this machine; one event loop, any number of tasks.

    Nothing raises but ``spawn`` and ``attach``.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._launcher: Launcher | None = None
        self._table: ProcessTable | None = None
        self._lost: list[ProcessTable] = []  # of keepers that were killed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._sessions: weakref.WeakValueDictionary[str, LocalSession] = (
            weakref.WeakValueDictionary()
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._sandbox: LocalSandbox | None = None
        self._network: LocalNetwork | None = None
        self._files = LocalFiles(self)
        self._environment = LocalEnvironment()

    @property
    def features(self) -> ExecutorFeatures:
        """What this machine offers; the keeper ends what is out of time."""
        return _FEATURES

    @property
    def files(self) -> LocalFiles:
        """The files of this machine."""
        return self._files

    async def spawn(self, request: SpawnRequest) -> LocalSession:
        """Start one process; raises ExecutorSpawnFailed."""
        spec = _spec(request, self._environment)
        try:
            table = self._table
            if table is None or self._loop is not asyncio.get_running_loop():
                # In a task: a cancelled request must not end the keeper of the others.
                table = await asyncio.shield(self._task(self._begin()))
            self._check_limits(spec)
            session = LocalSession(request.process_id, request.network)
            # In one step: the descriptors of a sandbox are its plan's, which may become another.
            spec = self._prepared(request, spec)
            starting = table.start(request.process_id, spec, lambda: session)
        except _START_ERRORS as error:
            raise _spawn_failed(error) from error
        try:
            session.begin(await asyncio.shield(starting))
        except _START_ERRORS as error:
            raise _spawn_failed(error) from error
        except asyncio.CancelledError:
            self._unwanted(table, request.process_id)
            raise
        self._sessions[request.process_id] = session
        return session

    async def attach(self, process_id: str) -> LocalSession:
        """A process that was started here; raises ProcessUnknown."""
        session = self._sessions.get(process_id)
        if session is None:
            raise ProcessUnknown(f"no process {process_id} was started by this executor")
        return session

    async def place(self) -> Place:
        """This machine."""
        try:
            cwd = os.getcwd()
        except FileNotFoundError:
            cwd = "/"  # ours was removed; it does not matter to a caller that names another
        return Place(
            shell=default_shell(os.environ),
            cwd=cwd,
            home=os.environ.get("HOME"),
            temp_dir=os.environ.get("TMPDIR") or "/tmp",  # noqa: S108 (the system's default)
            platform=sys.platform,
        )

    async def connect_loopback(self, name: str, port: int) -> LoopbackStream:
        """Connect to what a process of this machine listens on; raises ConnectionRefusedError."""
        from handrail.executor.local_loopback import SocketStream

        if self._sandbox is None or self._loop is not asyncio.get_running_loop():
            raise ConnectionRefusedError("no command was started yet")
        return SocketStream(await self._sandbox.reach(name, port))

    async def end_left(self, prefix: str) -> None:
        """End the descendants that exited processes with such ids have left; raises nothing."""
        launcher, table = self._launcher, self._table
        if launcher is None or table is None or self._loop is not asyncio.get_running_loop():
            return
        if self._sandbox is not None:
            self._sandbox.loopbacks.drop(prefix)
        try:
            left = await launcher.orphans()
            for child in (*table, *table.left_behind()):
                if child.number in left and not child.running and child.key.startswith(prefix):
                    await child.ending.kill()
        except KeeperLost:
            pass  # its children were killed with it

    async def close(self) -> None:
        """End every process with its tree, and the keeper.

        In a child after a fork nothing is done: all of it is the parent's.
        """
        loop = self._loop
        if loop is not None and self._pid != os.getpid():
            return
        if loop is None or loop is asyncio.get_running_loop() or not loop.is_running():
            await self._close()
        else:  # a loop is touched in its own thread only
            there = asyncio.run_coroutine_threadsafe(self._close(), loop)
            with contextlib.suppress(TimeoutError):  # it was stopped meanwhile
                await asyncio.wait_for(asyncio.wrap_future(there), 2 * _END_SECONDS)

    async def _close(self) -> None:
        async with self._lock:
            self._closed = True
            await self._files.close()
            launcher, table = self._launcher, self._table
            self._launcher = self._table = None
            sandbox, self._sandbox = self._sandbox, None
            network, self._network = self._network, None
            own = self._loop is asyncio.get_running_loop()
            try:
                if sandbox is not None and own:
                    with contextlib.suppress(TimeoutError):  # what does not end is the keeper's
                        async with asyncio.timeout(_END_SECONDS):
                            await sandbox.close_helpers()
                if launcher is not None and table is not None:
                    await (self._end(launcher, table) if own else self._abandon(launcher))
                if network is not None and own:
                    network.close()
                for lost in self._lost if own else ():
                    await lost.end_all()
                    await lost.started()
                if sandbox is not None and own:
                    await sandbox.see_out()
            finally:
                if sandbox is not None:
                    sandbox.close()

    async def _abandon(self, launcher: Launcher) -> None:
        """End the keeper and its children although the event loop of their start has ended."""
        with contextlib.suppress(RuntimeError):  # a closed loop reaps no child
            launcher.close()  # the keeper ends them when it sees that
        await asyncio.to_thread(_reap, launcher.keeper_pid)

    async def _end(self, launcher: Launcher, table: ProcessTable) -> None:
        try:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await asyncio.gather(*(_ended(child) for child in table))
            except (TimeoutError, KeeperLost):
                pass  # what does not end is the keeper's
            sessions = list(self._sessions.values())
            await table.end_all()
            await launcher.stop()
            await table.started()
        finally:
            launcher.close()  # also when this is cancelled
        for session in sessions:
            session.lost()

    async def _begin(self) -> ProcessTable:
        async with self._lock:
            loop = asyncio.get_running_loop()
            if self._closed:
                raise ExecutorSpawnFailed("this executor is closed; make a new one")
            if self._table is not None:
                if self._loop is not loop:
                    raise ExecutorSpawnFailed(
                        "this executor belongs to another event loop; make one for each loop"
                    )
                return self._table
            try:
                launcher = Launcher(start_keeper(), loop)
            except (OSError, UsageError) as error:
                raise ExecutorSpawnFailed(f"the keeper does not start: {error}") from error
            launcher.hands_over = False
            try:
                await launcher.hello()
            except BaseException:
                launcher.close()
                raise
            launcher.link.on_lost = self._keeper_lost
            self._loop, self._pid = loop, os.getpid()
            self._launcher = launcher
            self._table = ProcessTable(launcher, loop, retention=RETENTION_SECONDS)
            return self._table

    def _prepared(self, request: SpawnRequest, spec: ProcessSpec) -> ProcessSpec:
        """The spec to start: sandboxed, and with a network of its own, if that is asked for."""
        if request.network is None:
            return self._sandboxed(request, spec, request.sandbox)
        from handrail.executor.local_network import LocalNetwork
        from handrail.sandbox.denial import with_network

        if self._network is None:
            assert self._launcher is not None  # noqa: S101 (there is a table)
            self._network = LocalNetwork(self._launcher, asyncio.get_running_loop())
        intent = request.sandbox
        spec, network = self._network.begin(request.network, spec, enforced=intent is not None)
        try:
            if intent is not None:
                intent = intent._replace(managed=True)
            return with_network(self._sandboxed(request, spec, intent, network), network)
        except BaseException:
            network.ended()
            raise

    def _sandboxed(
        self,
        request: SpawnRequest,
        spec: ProcessSpec,
        intent: Intent | None,
        network: ManagedProcess | None = None,
    ) -> ProcessSpec:
        if intent is None:
            return spec
        return self._own_sandbox().sandboxed(
            spec,
            intent,
            self._launcher,
            watch=request.watch_denials,
            loopback=request.loopback,
            network=network,
        )

    def _own_sandbox(self) -> LocalSandbox:
        if self._closed:
            raise ExecutorSpawnFailed("this executor is closed; make a new one")
        if self._sandbox is None:
            from handrail.executor.local_sandbox import LocalSandbox

            self._sandbox = LocalSandbox()
        return self._sandbox

    def _check_limits(self, spec: ProcessSpec) -> None:
        """Raises ExecutorSpawnFailed for a limit that the keeper cannot set."""
        wanted = spec.limits.for_keeper().keys()
        if wanted and self._launcher is not None and wanted - self._launcher.abilities.limits:
            raise ExecutorSpawnFailed(
                "the limits memory and processes need a control group that this program may write"
                " to; run it where one is delegated to it (systemd-run --user --scope -p"
                " Delegate=yes), or leave them out"
            )

    async def file_helper(self, pool: FilePool, intent: Intent, *, writes: bool) -> FileHelper:
        """The process that does file calls under an intent; raises HandrailError."""
        launcher = await self._keeper()
        return await self._own_sandbox().file_helper(launcher, pool, intent, writes=writes)

    async def file_view(
        self, pool: FilePool, intent: Intent, *, writes: bool
    ) -> tuple[MountView | None, FileHelper | None]:
        """The mounts of that process; raises HandrailError."""
        launcher = await self._keeper()
        return await self._own_sandbox().file_view(launcher, pool, intent, writes=writes)

    async def _keeper(self) -> Launcher:
        launcher = self._launcher
        if launcher is None or self._loop is not asyncio.get_running_loop():
            await asyncio.shield(self._task(self._begin()))
            launcher = self._launcher
        if launcher is None:
            raise KeeperLost("the keeper ended just now; try again")
        return launcher

    async def release_helpers(self, used: Collection[FileHelper]) -> None:
        """End those file helpers that do nothing now."""
        if self._sandbox is not None and self._loop is asyncio.get_running_loop():
            await self._sandbox.release_helpers(used)

    def _keeper_lost(self) -> None:
        """End the children of a keeper that was killed; the next spawn starts another keeper."""
        table, launcher, self._table, self._launcher = self._table, self._launcher, None, None
        children = list(table or ())
        self._lost = [table for table in (*self._lost, table) if table]
        release.kill(*children)
        if self._sandbox is not None:
            self._sandbox.keeper_lost()
        network, self._network = self._network, None
        if network is not None:
            network.close()
        if launcher is not None:
            launcher.close()
            tag_kill.end_all_of([launcher.mark])  # started, and not reported to us
        for child in children:
            child.ending.exit_unknown()  # there is no keeper to ask for its status

    def _unwanted(self, table: ProcessTable, process_id: str) -> None:
        """End a process whose request was cancelled before it had started."""
        entry = table.get(process_id)
        if isinstance(entry, Starting):
            table.cancel_start(entry)
        elif isinstance(entry, Child):
            self._task(entry.ending.kill())

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that a cancelled caller does not cancel."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled


def _spawn_failed(error: HandrailError) -> ExecutorSpawnFailed:
    what = "failed to prepare process sandbox: " if isinstance(error, SandboxError) else ""
    number = error.errno if isinstance(error, SpawnFailed) else 0
    kind = SpawnUnenforceable if isinstance(error, SandboxUnavailable) else ExecutorSpawnFailed
    return kind(f"{what}{error}", errno=number)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # reaped already
        os.waitpid(pid, 0)


async def _ended(child: Child) -> None:
    await child.ending.kill()
    while child.running:
        await child.changed(_END_SECONDS)
    # Its family is gone, but a stranger may have been given one of its streams.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while not child.closed:
                await child.changed(DRAIN_SECONDS)


def _spec(request: SpawnRequest, environment: LocalEnvironment) -> ProcessSpec:
    """Check a request before anything is started."""
    check_sandbox(request.sandbox)
    if request.detach:
        raise ExecutorSpawnFailed("a process of this program ends with it; detach needs a server")
    if not request.argv:
        raise ExecutorSpawnFailed("argv must not be empty")
    if not request.argv[0]:
        raise ExecutorSpawnFailed("missing program for pipe spawn")
    cwd = os.fsencode(request.cwd)
    if not cwd.startswith(b"/"):
        raise ExecutorSpawnFailed(f"cwd {request.cwd!r} is not absolute; give the whole path")
    env = environment.of(request)
    rows, cols = request.size
    if not (1 <= rows <= 65_535 and 1 <= cols <= 65_535):
        raise ExecutorSpawnFailed(f"a terminal has 1 to 65535 rows and columns, not {rows}x{cols}")
    return ProcessSpec(
        argv=tuple(map(os.fsencode, request.argv)),
        cwd=cwd,
        env=env,
        tty=request.tty,
        pipe_stdin=request.pipe_stdin,
        arg0=None if request.arg0 is None else os.fsencode(request.arg0),
        rows=rows,
        cols=cols,
        name=request.name,
        passed=request.inherited_fds,
        timeout=request.timeout,
        limits=request.limits,
        waits_for_streams=True,
    )
