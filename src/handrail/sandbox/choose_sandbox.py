"""The sandbox of this machine: which mechanism enforces a profile, and how a command gets it.

One object for each server, executor or command line.  Nothing is ever run with less than was asked
for: what cannot be enforced is refused with the reason, by bubblewrap here, by Landlock in
``landlock/backend.py``.
"""

from __future__ import annotations

import os
import posixpath
import sys

from handrail import private_places
from handrail.sandbox import probe
from handrail.sandbox.bwrap.command import wrap
from handrail.sandbox.bwrap.instance import others_at_work
from handrail.sandbox.bwrap.instances import Instances
from handrail.sandbox.plan.placeholder_lease import Stale
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
from handrail.sandbox.plan.plan import Plan, Planner
from handrail.sandbox.plan.safe_open import Exchanged, Refused
from handrail.sandbox.plan_retries import Tries
from handrail.sandbox.profile import Access, Intent, Machine, Profile, resolve
from handrail.sandbox.sandboxed_command import SandboxedCommand
from handrail.sandbox.syscalls import ARCHES
from handrail.start_errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from handrail.filesystem.pool import FilePool
    from handrail.process.keeper_client.spawn_children import Launcher
    from handrail.sandbox.loopback import Joining
    from handrail.sandbox.sandboxed_command import AnyCommand
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder
    from handrail.sandbox.warm.pool import WarmSandboxes
    from handrail.start_errors import SandboxError

#: How long the last sandboxes may take to be gone when their server ends.
_LAST_SECONDS = 2.0
#: How long planning may take, in seconds; a file system may hang.
_LOOK_SECONDS = 60.0
#: How many profiles are remembered.
_MOST_PROFILES = 64
#: How many programs and directories are remembered for a plan.
_MOST_REACHABLE = 256
_TOO_FAST = "the workspace changes too fast to be covered; start the command again"


class Preparation:
    """The plan of one profile, made in another thread."""

    def __init__(self, planner: Planner, profile: Profile) -> None:
        self._planner = planner
        self._profile = profile
        self._careful = others_at_work()
        #: How long it took.
        self.seconds = 0.0

    def look(self) -> Plan | None:
        """Make the plan, in any thread; None when files changed meanwhile.  Raises Refused."""
        import time

        began = time.monotonic()
        try:
            return self._planner.prepare(self._profile, self._careful)
        except Exchanged:
            return None  # `sandboxed` counts the tries, and knows most of the tree by now
        finally:
            self.seconds = time.monotonic() - began

    async def in_thread(self, pool: FilePool) -> None:
        """Make the plan and install it; raises Refused, and FilesError when no thread is free."""
        self.install(await pool.run(self.look, deadline=_LOOK_SECONDS, discard=self.discard))

    def install(self, plan: Plan | None) -> None:
        """Give the plan to the call of ``sandboxed`` that follows at once."""
        if plan is not None:
            self._planner.install(self._profile, self._careful, plan)

    def discard(self, plan: Plan | None) -> None:
        """Close the plan: no call of ``sandboxed`` follows."""
        if plan is not None:
            self._planner.discard(plan)


class Sandbox:
    """The sandbox of this machine, ready to be used again and again."""

    def __init__(self, *, once: bool = False) -> None:
        """``once``: it is used for one command."""
        self._once = once
        self._machine: Machine | None = None
        #: What intents and directories mean on that machine.
        self._profiles: dict[tuple[Intent, bytes], Profile] = {}
        #: The revision of the list of private places it was made with.
        self._places: tuple[int, ...] = ()
        self._found: probe.Bubblewrap | None = None
        self._planner: Planner | None = None
        #: The sandboxes it has made.
        self.upkeep = Instances()
        self._warm: WarmSandboxes | None = None
        #: Whether a command was started that could have been from one: most programs start one.
        self._repeated = False
        self._closed = False

    @property
    def machine(self) -> Machine:
        """The meaning of symbolic roots on this machine."""
        if self._machine is None or self._places != private_places.revision():
            self._places = private_places.revision()
            self._machine = probe.this_machine()
            self._profiles.clear()
        return self._machine

    def resolve(self, intent: Intent, cwd: bytes) -> Profile:
        """Bind an intent to this machine; raises BadIntent."""
        machine = self.machine
        found = self._profiles.get((intent, cwd))
        if found is None:
            found = resolve(intent, cwd, machine)
            if len(self._profiles) >= _MOST_PROFILES:
                self._profiles.clear()
            self._profiles[intent, cwd] = found
        return found

    def plan(self, profile: Profile) -> Plan:
        """The plan for a profile; raises SandboxUnavailable or Refused."""
        planner, tries = self._ready(), Tries()
        while True:
            try:
                return planner.plan(profile, tries)
            except Exchanged as moved:
                tries.failed(moved)

    def prepare(self, profile: Profile, *, quick: bool = False) -> Preparation | None:
        """The work for another thread before ``sandboxed``, if looking may take a while.

        ``quick``: the last look did not.  Raises SandboxUnavailable.
        """
        planner = self._ready()
        takes_long = planner.takes_long(profile, quick=quick)
        return Preparation(planner, profile) if takes_long else None

    def sandboxed(
        self,
        command: AnyCommand,
        wanted: Intent | Profile,
        *,
        watch: bool = False,
        lasting: bool = False,
        guarded: bool = False,
        join: Callable[[Profile], Joining | None] | None = None,
        launcher: Launcher | None = None,
    ) -> SandboxedCommand:
        """Wrap a command so that it runs sandboxed: the one entry for all that start one.

        Bubblewrap, or Landlock where bubblewrap cannot work and Landlock can enforce the profile.
        ``watch``: every refused change is recorded.  ``lasting``: it outlives the program that
        starts it.  ``guarded``: another process ends the whole tree if that program is killed; in
        bubblewrap the command does not start before ``RunningSandbox.let_start``.
        ``join`` says which network it shares, where bubblewrap works, instead of having its own.
        ``launcher``: starts it, from a sandbox that was made ahead if there is one.
        Raises BadIntent, SandboxUnavailable or Refused.  A profile that asks for nothing gives the
        command as it is.
        """
        profile = wanted if isinstance(wanted, Profile) else self.resolve(wanted, command.cwd)
        if not profile.sandboxed:
            return SandboxedCommand(command.argv, command.cwd, command.env)
        self._check_usable()
        try:
            self._ready()
        except SandboxUnavailable as why:
            if watch:
                raise SandboxUnavailable(
                    f"{why}; refusals are recorded only with it, so do not ask for that either"
                ) from None
            if profile.managed:
                raise SandboxUnavailable(f"{why}; a managed network needs that") from None
            from handrail.sandbox.landlock import backend  # machines without user namespaces

            # The guard finds the tree by its first process, which the kernel must not end before.
            return backend.wrap(command, profile, why, lasting=lasting or guarded)
        joining = None if join is None else join(profile)
        warm = None if launcher is None or watch else self._warm_by(launcher)
        return self._wrapped(command, profile, watch, lasting, joining, Tries(), warm, guarded)

    def _wrapped(
        self,
        command: AnyCommand,
        profile: Profile,
        watch: bool,
        lasting: bool,
        joining: Joining | None,
        tries: Tries,
        warm: WarmSandboxes | None = None,
        guarded: bool = False,
    ) -> SandboxedCommand:
        planner = self._ready()
        while True:
            try:
                tries.plan = plan = planner.plan(profile, tries)
                _check_reachable(command.argv[0], command.cwd, plan)
                watcher = self._watcher(plan) if watch else None
                made = None
                if warm is not None and not tries.failures:
                    # With a launcher it is a complete spec.
                    made = warm.take(command, plan, joining, lasting=lasting)  # type: ignore[arg-type]
                if made is None:
                    made = wrap(
                        command,
                        plan,
                        self._bwrap,
                        self.upkeep,
                        watcher,
                        lasting=lasting,
                        joining=joining,
                        guarded=guarded,
                    )
                break
            except Stale:
                tries.failed(Refused(_TOO_FAST))
            except Exchanged as moved:
                tries.failed(moved)

        def again(problem: SandboxError) -> SandboxedCommand:
            tries.failed(problem)
            return self._wrapped(command, profile, watch, lasting, joining, tries, None, guarded)

        def may_write(path: bytes) -> bool:
            # A file of the host's /tmp is not the one that the command finds at that path.
            return plan.access(path) is Access.WRITE and plan.shown.host_path(path) == path

        return made._replace(watched=watch, may_write=may_write, again=again)

    def _warm_by(self, launcher: Launcher) -> WarmSandboxes | None:
        """The sandboxes that wait, as children of the launcher's keeper; None: there are none."""
        if self._warm is None or self._warm.launcher is not launcher:
            from handrail.sandbox import warm  # servers and executors alone

            self.end_warm()
            repeated, self._repeated = self._repeated, True
            if not warm.is_chosen(repeated=repeated):
                return None
            from handrail.sandbox.warm import pool

            if not pool.possible(self._bwrap):
                return None
            self._warm = pool.WarmSandboxes(launcher, self._bwrap, self.upkeep, self._ready())
        return self._warm

    def end_warm(self) -> None:
        """End the sandboxes that wait for a command, without waiting for their ends."""
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.close()

    def _watcher(self, plan: Plan) -> DenialRecorder:
        if not self._bwrap.connects:
            raise SandboxUnavailable(
                "this machine cannot report syscalls, so refusals cannot be recorded; do not ask"
                " for that, or run `handrail doctor` to see why"
            )
        from handrail.sandbox.syscalls.denial_recorder import watch_plan  # rare

        return watch_plan(plan)

    async def see_out(self, loop: AbstractEventLoop) -> None:
        """Wait before ``close`` for the last sandboxes, without blocking the loop."""
        self.end_warm()
        await self.upkeep.see_out(loop, _LAST_SECONDS)

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Remove what its sandboxes leave, which were told to end, and close all descriptors."""
        self._closed = True
        self.end_warm()
        self.upkeep.close(seconds)
        if self._planner is not None:
            self._planner.close()
            self._planner.registry.close()
            self._planner = None

    @property
    def _bwrap(self) -> probe.Bubblewrap:
        assert self._found is not None  # noqa: S101 (found before there is a planner)
        return self._found

    def _check_usable(self) -> None:
        """Raises SandboxUnavailable where no mechanism can work."""
        if self._closed:
            raise SandboxUnavailable("this sandbox is closed; make another")
        if sys.platform != "linux":
            raise SandboxUnavailable(
                f"handrail has a sandbox for Linux only and this is {sys.platform}, so nothing"
                " was run; use a Linux container, or an executor on a Linux machine"
            )
        if os.uname().machine not in ARCHES:
            raise SandboxUnavailable(
                f"there is no seccomp filter for {os.uname().machine}; use x86_64 or aarch64"
            )

    def _ready(self) -> Planner:
        """Raises SandboxUnavailable where bubblewrap cannot work."""
        if self._planner is None:
            self._check_usable()
            self._found = probe.bubblewrap()
            self._planner = Planner(
                PlaceholderRegistry(), fresh_proc=self._found.fresh_proc, once=self._once
            )
        return self._planner


def _real(path: bytes) -> bytes:
    """The path without links; by the kernel, which takes a fifth of the time of ``realpath``."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        found = os.readlink(b"/proc/self/fd/%d" % fd)
    except OSError:
        return os.path.realpath(path)
    finally:
        os.close(fd)
    # Neither one that was removed meanwhile, nor one outside of our root.
    plain = found.startswith(b"/") and not found.endswith(b" (deleted)")
    return found if plain else os.path.realpath(path)


def _check_reachable(program: bytes, cwd: bytes, plan: Plan) -> None:
    """Refuse what can be seen to fail, with a better sentence than exec's; raises Refused.

    Looked at once for a plan: it enforces nothing, and a command that cannot begin later fails.
    """
    if (program, cwd) in plan.reachable:
        return
    real = _real(cwd)
    shown_from = plan.shown.host_path(real)
    if shown_from != real and not os.path.isdir(shown_from):
        raise Refused(
            f"the working directory {os.fsdecode(cwd)} is not in the sandbox, which has a /tmp of"
            " its own; name it as one to read or write"
        )
    if plan.access(real) is Access.DENY:
        raise Refused(
            f"the working directory {os.fsdecode(cwd)} is not readable under the profile;"
            " give read access to it"
        )
    if b"/" in program:  # else it is looked up in the sandbox
        path = _real(posixpath.join(real, program))
        if plan.access(path) is Access.DENY:
            raise Refused(
                f"the program {os.fsdecode(program)} is not readable under the profile; give read"
                " access to it (`minimal` holds the usual ones)"
            )
    if len(plan.reachable) < _MOST_REACHABLE:
        plan.reachable.add((program, cwd))
