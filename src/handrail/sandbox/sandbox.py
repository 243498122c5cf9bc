"""Which mechanism holds a profile on this machine.

One object a server: it knows the machine, makes the plans and wraps.  Nothing is ever run with
less than was asked for: what cannot be enforced is refused with the reason.
"""

from __future__ import annotations

import os
import posixpath
import sys

from handrail import private_places
from handrail.errors import SandboxUnavailable
from handrail.sandbox import probe
from handrail.sandbox.bwrap.command import Wrapped, wrap, wrap_command
from handrail.sandbox.bwrap.instance import others_at_work
from handrail.sandbox.bwrap.instances import Instances
from handrail.sandbox.plan.placeholders import PlaceholderRegistry, Stale
from handrail.sandbox.plan.plan import Plan, Planner
from handrail.sandbox.plan.safe_open import Exchanged, Refused
from handrail.sandbox.profile import Access, Intent, Machine, Profile, resolve
from handrail.sandbox.syscalls import seccomp_filter
from handrail.sandbox.tries import Tries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from handrail.process.spec import ProcessSpec
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder

    T = TypeVar("T")

#: What the wire calls it.
LINUX_SECCOMP = "linuxSeccomp"
#: How long the last sandboxes may take to be gone when their server ends.
_LAST_SECONDS = 2.0
_TOO_FAST = "the workspace changes too fast to be covered; start the command again"


class Preparation:
    """The plan of one profile, made beside whoever goes on meanwhile."""

    def __init__(self, planner: Planner, profile: Profile) -> None:
        self._planner = planner
        self._profile = profile
        self._careful = others_at_work()
        #: How long it took.
        self.seconds = 0.0

    def look(self) -> Plan | None:
        """Make it, in any thread; None when something moved meanwhile.  Raises Refused."""
        import time

        began = time.monotonic()
        try:
            return self._planner.prepare(self._profile, self._careful)
        except Exchanged:
            return None  # ``contain`` counts the tries, and knows most of the tree by now
        finally:
            self.seconds = time.monotonic() - began

    def install(self, plan: Plan | None) -> None:
        """Have it used by the ``contain`` that follows at once."""
        if plan is not None:
            self._planner.install(self._profile, self._careful, plan)

    def discard(self, plan: Plan | None) -> None:
        """There is no ``contain`` any more."""
        if plan is not None:
            self._planner.discard(plan)


class Sandbox:
    """The sandbox of this machine, ready to be used again and again."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        #: The revision of the list of private places it was made with.
        self._places: tuple[int, ...] = ()
        self._found: probe.Bubblewrap | None = None
        self._planner: Planner | None = None
        #: What it has made, and nobody else.
        self.upkeep = Instances()
        self._closed = False

    @property
    def machine(self) -> Machine:
        """What symbolic roots mean here."""
        if self._machine is None or self._places != private_places.revision():
            self._places = private_places.revision()
            self._machine = probe.this_machine()
        return self._machine

    def resolve(self, intent: Intent, cwd: bytes) -> Profile:
        """Bind an intent to this machine; raises BadIntent."""
        return resolve(intent, cwd, self.machine)

    def plan(self, profile: Profile) -> Plan:
        """The plan for a profile; raises SandboxUnavailable or Refused."""
        return self._with_plan(profile, Tries(), lambda plan: plan)

    def prepare(self, profile: Profile) -> Preparation | None:
        """What to do in another thread before ``contain``, if looking may take a while.

        Raises SandboxUnavailable.
        """
        planner = self._ready()
        return Preparation(planner, profile) if planner.takes_long(profile) else None

    def contain(
        self,
        spec: ProcessSpec,
        profile: Profile,
        *,
        watch: bool = False,
        lasting: bool = False,
        tries: Tries | None = None,
    ) -> ProcessSpec:
        """The spec that runs the same command held by the profile.

        ``watch``: what it tries in vain is noted.  ``lasting``: it outlives whoever starts it.
        ``tries``: those that came to nothing before.  Raises SandboxUnavailable, or Refused.
        One that asks for nothing is given back as it is.
        """
        if not profile.confined:
            return spec
        counted = Tries() if tries is None else tries

        def hold(plan: Plan) -> ProcessSpec:
            def once_more(said: str) -> ProcessSpec:
                counted.failed(SandboxUnavailable(said or "it was killed"))
                return self.contain(spec, profile, watch=watch, lasting=lasting, tries=counted)

            _check_reachable(spec.argv[0], spec.cwd, plan)
            return wrap(
                spec,
                plan,
                self._bwrap,
                plan.registry,
                self.upkeep,
                once_more,
                watcher(plan),
                lasting=lasting,
            )

        def watcher(plan: Plan) -> DenialRecorder | None:
            if not watch:
                return None
            if not self._bwrap.connects:
                raise SandboxUnavailable(
                    "calls cannot be announced here, so attempts cannot be noted; leave"
                    " watchDenials out, or run `handrail doctor` to see why"
                )
            from handrail.sandbox.syscalls.denial_recorder import watch_plan  # rare

            return watch_plan(plan)

        return self._with_plan(profile, counted, hold)

    def contain_command(
        self,
        argv: tuple[bytes, ...],
        cwd: bytes,
        env: Mapping[bytes, bytes],
        profile: Profile,
        *,
        tty: bool = False,
        tries: Tries,
    ) -> Wrapped:
        """The same for words and an environment, under a profile that asks for something."""

        def hold(plan: Plan) -> Wrapped:
            _check_reachable(argv[0], cwd, plan)
            return wrap_command(
                argv, cwd, env, plan, self._bwrap, plan.registry, self.upkeep, tty=tty
            )

        return self._with_plan(profile, tries, hold)

    def _with_plan(self, profile: Profile, tries: Tries, hold: Callable[[Plan], T]) -> T:
        planner = self._ready()
        while True:
            try:
                tries.plan = planner.plan(profile, tries)
                return hold(tries.plan)
            except Stale:
                tries.failed(Refused(_TOO_FAST))
            except Exchanged as moved:
                tries.failed(moved)

    def sweep(self) -> None:
        """Clear away what sandboxes of before have left behind."""
        self._ready().registry.sweep()

    async def see_out(self, loop: AbstractEventLoop) -> None:
        """Before ``close``, for whoever has more to do on its loop than to wait for the last."""
        await self.upkeep.see_out(loop, _LAST_SECONDS)

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Clear away what its sandboxes leave, which were told to end, and let go."""
        self._closed = True
        self.upkeep.close(seconds)
        if self._planner is not None:
            self._planner.close()
            self._planner.registry.close()
            self._planner = None

    @property
    def _bwrap(self) -> probe.Bubblewrap:
        assert self._found is not None  # noqa: S101 (found before there is a planner)
        return self._found

    def _ready(self) -> Planner:
        if self._closed:
            raise SandboxUnavailable("whoever contains commands is closed; make another")
        if self._planner is None:
            if sys.platform != "linux":
                raise SandboxUnavailable(
                    f"handrail has a sandbox for Linux only and this is {sys.platform}, so nothing"
                    " was run; use a Linux container, or an executor on a Linux machine"
                )
            if os.uname().machine not in seccomp_filter.ARCHES:
                raise SandboxUnavailable(
                    f"no filter program for {os.uname().machine}; run commands on x86_64 or aarch64"
                )
            self._found = probe.bubblewrap()
            self._planner = Planner(PlaceholderRegistry(), fresh_proc=self._found.fresh_proc)
        return self._planner


def _check_reachable(program: bytes, cwd: bytes, plan: Plan) -> None:
    """What can be seen to fail from here is refused, with a better sentence than exec's."""
    real = os.path.realpath(cwd)
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
    if b"/" not in program:
        return  # looked up inside
    path = os.path.realpath(posixpath.join(real, program))
    if plan.access(path) is Access.DENY:
        raise Refused(
            f"the program {os.fsdecode(program)} is not readable under the profile; give read"
            " access to it (`minimal` holds the usual ones)"
        )
