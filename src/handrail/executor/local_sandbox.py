"""The sandbox of a local executor.  Imported with the first process that asks for one.

A program that uses this may fork.  Its child then has copies of our descriptors, and the locks and
loops of threads that it does not have: it closes the ones and never touches the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING

from handrail import private_places
from handrail.errors import SpawnFailed, UsageError
from handrail.filesystem.pool import FilePool
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.spec import ProcessSpec
from handrail.sandbox import private_tmp
from handrail.sandbox.bwrap.instances import Instances
from handrail.sandbox.choose_sandbox import Sandbox
from handrail.sandbox.loopback import LoopbackNetworks
from handrail.sandbox.profile import Intent, Profile
from handrail.sandbox.sandboxed_command import NO_SANDBOX
from handrail.sandboxed_files.mount_view import MountView
from handrail.sandboxed_files.plan import FileSandbox, FileSandboxes
from handrail.sandboxed_files.pool import FileHelper, FileHelpers

if TYPE_CHECKING:
    import socket

    from handrail.network.loopback_reach import LoopbackReach
    from handrail.network.managed.process import ManagedProcess

log = logging.getLogger(__name__)


class LocalSandbox:
    """The sandbox of one executor."""

    def __init__(self) -> None:
        self._sandbox = Sandbox()
        _forks.take_in(self._sandbox.upkeep)
        self._told = False
        self._file_sandboxes = FileSandboxes(self._sandbox)
        #: Networks that commands share.
        self.loopbacks = LoopbackNetworks()
        self._reach: LoopbackReach | None = None
        self._helpers: FileHelpers | None = None
        self._ending: set[FileHelper] = set()

    def sandboxed(
        self,
        spec: ProcessSpec,
        intent: Intent,
        launcher: Launcher | None = None,
        *,
        watch: bool = False,
        loopback: str | None = None,
        network: ManagedProcess | None = None,
    ) -> ProcessSpec:
        """The spec to start; raises SandboxError, SpawnFailed or UsageError: nothing was run.

        ``watch``: every refused change is recorded.  ``loopback``: under which name it
        shares its network, ``network`` what is managed of it.
        """
        profile = self._sandbox.resolve(intent, spec.cwd)
        _check(profile, spec)
        join = None
        if loopback is not None:
            hosts, led_to = ("", None) if network is None else (network.hosts, network.led_to)
            join = self.loopbacks.joiner(loopback, hosts, led_to)
        made = self._sandbox.sandboxed(spec, profile, watch=watch, join=join, launcher=launcher)
        if spec.passed and made.mechanism != NO_SANDBOX:
            made.abandon()
            # The file behind a descriptor can be opened anew, for more than it was given for.
            raise UsageError(
                "a sandboxed command gets no inherited_fds: they would reach what the sandbox"
                " hides; pass the data by stdin or a file, or leave the sandbox out"
            )
        if made.reason and not self._told:
            self._told = True
            # Never in silence: Landlock enforces less than what people expect of bubblewrap.
            log.warning("%s; commands are sandboxed by Landlock instead", made.reason)
        return made.spec(spec)

    async def reach(self, name: str, port: int) -> socket.socket:
        """Connect to a port of a network that commands share; raises ConnectionRefusedError."""
        from handrail.network.loopback_reach import LoopbackReach

        if self._reach is None:
            self._reach = LoopbackReach()
        return await self._reach.connect(self.loopbacks.named(name), port)

    async def file_helper(
        self, launcher: Launcher, pool: FilePool, intent: Intent, *, writes: bool
    ) -> FileHelper:
        """The file helper for an intent; raises SandboxError, FilesError, SpawnFailed."""
        found = await self._file_sandbox(pool, intent, writes)
        return await self._file_helpers(launcher).get(found)

    async def file_view(
        self, launcher: Launcher, pool: FilePool, intent: Intent, *, writes: bool
    ) -> tuple[MountView | None, FileHelper | None]:
        """The mounts of the helper for an intent; None: ask it.  The helper, if it has begun."""
        found = await self._file_sandbox(pool, intent, writes)
        helpers = self._file_helpers(launcher)
        return await helpers.view(found), helpers.begun(found)

    async def _file_sandbox(self, pool: FilePool, intent: Intent, writes: bool) -> FileSandbox:
        words = intent, private_places.revision()
        found = self._file_sandboxes.known(words, writes=writes)
        if found is None:
            profile = self._sandbox.resolve(intent, b"/")
            found = await self._file_sandboxes.find(pool, profile, writes=writes, words=words)
        return found

    def _file_helpers(self, launcher: Launcher) -> FileHelpers:
        if self._helpers is None:
            self._helpers = FileHelpers(launcher, asyncio.get_running_loop(), self._ending)
        return self._helpers

    async def release_helpers(self, used: Collection[FileHelper]) -> None:
        """End those file helpers that do nothing now."""
        if self._helpers is not None:
            await self._helpers.release(used)

    async def close_helpers(self) -> None:
        """End all file helpers, and the sandboxes that wait for a command."""
        self._sandbox.end_warm()
        helpers, self._helpers = self._helpers, None
        if helpers is not None:
            helpers.close()
            await helpers.started()
        for helper in list(self._ending):
            await helper.ended()

    def keeper_lost(self) -> None:
        """The keeper is gone: its file helpers are as well, and the next is another's."""
        self._sandbox.end_warm()
        helpers, self._helpers = self._helpers, None
        if helpers is not None:
            helpers.lost()

    async def see_out(self) -> None:
        """Wait for the end of those that were told to end."""
        await self._sandbox.see_out(asyncio.get_running_loop())

    def close(self) -> None:
        """Release what is left, without waiting."""
        if self._reach is not None:
            self._reach.close()
        self.loopbacks.close()
        self._sandbox.close(0)


def _check(profile: Profile, spec: ProcessSpec) -> None:
    """Raise SpawnFailed for what cannot be started, as far as the host can tell."""
    if not os.path.isdir(spec.cwd) and not private_tmp.covers(profile, spec.cwd):
        # In the sandbox it would only be a failed program, with an exit code like any other.
        raise SpawnFailed(
            f"the working directory {os.fsdecode(spec.cwd)} is no directory here; name one"
        )
    private_tmp.check_program(profile, spec.argv[0], spec.env, spec.cwd)


class _Forks:
    """Sees to it that a fork takes no descriptor along that has to be closed here alone."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[int, weakref.ref[Instances]] = {}
        #: Of forks under way: which thread, and what it has stopped.
        self._forking: list[tuple[int, list[Instances]]] = []
        os.register_at_fork(
            before=self._before, after_in_parent=self._after, after_in_child=self._in_child
        )

    def take_in(self, upkeep: Instances) -> None:
        """From now on it is thought of."""
        key = id(upkeep)
        with self._lock:
            self._known[key] = weakref.ref(upkeep, lambda _: self._known.pop(key, None))

    def _before(self) -> None:
        self._lock.acquire()
        found = [known() for known in list(self._known.values())]
        stopped = [upkeep for upkeep in found if upkeep is not None]
        for upkeep in stopped:
            upkeep.lock.acquire()
        self._forking.append((threading.get_ident(), stopped))

    def _after(self) -> None:
        if not self._forking or self._forking[-1][0] != threading.get_ident():
            return  # we were imported while it forked
        for upkeep in self._forking.pop()[1]:
            upkeep.lock.release()
        self._lock.release()

    def _in_child(self) -> None:
        for _, stopped in self._forking:
            for upkeep in stopped:
                upkeep.disown()
        self._known.clear()
        self._after()


_forks = _Forks()
