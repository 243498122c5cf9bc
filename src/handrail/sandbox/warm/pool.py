"""The sandboxes that wait for commands of one server or executor.

A command takes one if there is one of its plan that may still be used.  Otherwise one is made for
it, if there is a template of its plan to copy (``template.py``); without it starts cold, by
bubblewrap.  Others are made one after another, when no command was started a moment ago, and end
when they are not used.  Each is used once.

They are children of the keeper.  It holds the only other end of their lines, and ends them when its
server is gone; without a keeper they end by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial

from handrail.errors import SandboxUnavailable
from handrail.keeper import waiting_stub
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.process import fd_reserve
from handrail.process.keeper_client.answers import Spawned
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.spawning import settle, spawn
from handrail.process.spec import ProcessSpec, Waiting
from handrail.sandbox.bwrap.arguments import LINE_FD
from handrail.sandbox.bwrap.command import environment
from handrail.sandbox.bwrap.instances import Instances
from handrail.sandbox.loopback import Joining
from handrail.sandbox.plan.placeholder_lease import Stale
from handrail.sandbox.plan.plan import Plan, Planner
from handrail.sandbox.plan.safe_open import Exchanged, Refused
from handrail.sandbox.probe import Bubblewrap
from handrail.sandbox.sandboxed_command import SandboxedCommand
from handrail.sandbox.warm import CHOICE, demand, is_chosen, programs
from handrail.sandbox.warm.command_fits import fits
from handrail.sandbox.warm.copy_command import copied
from handrail.sandbox.warm.free_memory import FreeMemory
from handrail.sandbox.warm.kinds import Begun, Kind, Line, kind_of
from handrail.sandbox.warm.reports import Reports
from handrail.sandbox.warm.template import Making, Template
from handrail.sandbox.warm.templates import Family, Templates
from handrail.sandbox.warm.waiting_sandbox import WaitingSandbox

log = logging.getLogger(__name__)

#: After a start nothing is made for this long; the second while enough wait of each kind.
_PAUSE_SECONDS, _QUIET_SECONDS = 0.001, 0.02
_ENOUGH = 3
#: What the event loop's clock and its timers count in.
_CLOCK_SECONDS = 0.001
#: With more commands than processors and one that began so short ago none is made: it would take
#: as much from them as the next command gains.
_CROWDED_SECONDS = 0.1
#: Among so many running sandboxes none is made: looking at them would take too long.
_MANY = 256
#: How often those that wait are looked at.
_LOOK_SECONDS = 1.0
#: So many are ended at a time, and so long after each other.
_MOST_ENDS, _ENDS_SECONDS = 2, 0.005
#: One that took longer to make takes from others what they need; then as long is none made.
_COSTLY_SECONDS = 0.03
#: After one that could not be made, and one whose plan was not true any more.
_FAILED_SECONDS, _MOVED_SECONDS = 10.0, 0.1
#: Descriptors that one holds in this process.
_EACH = 10
#: What one waits for.
_UNTOLD = Waiting((), b"", {}, LINE_FD)


def possible(bwrap: Bubblewrap) -> bool:
    """Whether sandboxes can wait on this machine, and are to."""
    return (
        is_chosen()
        and bwrap.fresh_proc
        and os.uname().machine in waiting_stub.MACHINES
        and seccomp_spawn.startable()
    )


class WarmSandboxes:
    """Makes them, gives them away, ends them; on one event loop."""

    def __init__(
        self,
        launcher: Launcher,
        bwrap: Bubblewrap,
        upkeep: Instances,
        planner: Planner,
    ) -> None:
        self.launcher = launcher
        self._planner = planner
        self._loop = asyncio.get_running_loop()
        self._bwrap = bwrap
        self._upkeep = upkeep
        self._forced = os.environ.get(CHOICE) == "on"
        self._stub_fd = -1
        self._lines: dict[Kind, Line] = {}
        #: That of the last command: most commands have the same.
        self._last: Kind | None = None
        self._templates = Templates()
        #: Those that are to be ended, when no command waits for that.
        self._unusable: list[WaitingSandbox] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._maker: asyncio.Task[None] | None = None
        self._begun: Begun | None = None
        self._template_making: Making | None = None
        self._started = 0.0
        self._failed = self._moved = -_FAILED_SECONDS
        #: None is made before.
        self._rests = 0.0
        #: When those that wait were last looked at.
        self._looked = -_LOOK_SECONDS
        self._memory = FreeMemory()
        self._most = max(0, min(demand.MOST, fd_reserve.limit() // 4 // _EACH))
        self._keeper = launcher.keeper_pid
        self._processors = os.cpu_count() or 1
        self._closed = False
        self._reports = Reports(upkeep, planner, self._lines)
        #: How many commands were started from one, and in one that was copied for them.
        self.used = self.copied = 0

    def __len__(self) -> int:
        standing = sum(len(line.standing) for line in self._lines.values())
        return standing + len(self._unusable)

    def take(
        self, command: ProcessSpec, plan: Plan, joining: Joining | None, *, lasting: bool
    ) -> SandboxedCommand | None:
        """One for a command under a plan that is true now; None: it starts cold.

        Raises Stale when a protected name that was missing is there, and Refused.
        """
        link = self.launcher.link
        if self._closed or link.bereft or not link.alive or not fits(command, plan):
            return None
        self._end_lost()
        kind = self._last = kind_of(self._last, command, plan, joining, lasting=lasting)
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = Line(plan)
        self._started = self._loop.time()
        line.demand.used(self._started)
        line.plan, line.joining = plan, joining
        self._wake(_QUIET_SECONDS if len(line.standing) > _ENOUGH else _PAUSE_SECONDS)
        if not line.standing:
            self._take_in(kind)
        while line.standing:
            one = line.standing.pop()
            try:
                template = one.template
                if template.is_of(plan) and template.confirmed() and one.stands():
                    covers = one.use()
                    self.launcher.unwatch(one.spawned.child)
                    self.used += 1
                    made = one.made._replace(joining=joining)
                    return self._given(made, command, plan, one.spawned, covers)
            except BaseException:
                self._unusable.append(one)
                raise
            self._unusable.append(one)
        found = self._template(kind.family, plan, joining)
        if found is None:
            return None
        made = self._copied(found, kind, joining, waits=False)
        assert made.running is not None  # noqa: S101 (copies have one)
        self.copied += 1
        return self._given(made, command, plan, None, made.running.covers(found.plan.masks))

    def _template(self, family: Family, plan: Plan, joining: Joining | None) -> Template | None:
        """The one to copy for a command that is there."""
        template = self._templates.usable(family, plan)
        if template is None and self._forced:
            making = self._making(plan, joining)
            try:
                template = making.finish()
            except (OSError, Exchanged):
                return None
            finally:
                making.running.settle(self._loop, _nothing)
            self._templates.put(family, template)
            if not plan.still_true():
                return None
        if template is None or not (template.proven or self._forced):
            return None
        return template if template.confirmed() else None

    def _given(
        self,
        made: SandboxedCommand,
        command: ProcessSpec,
        plan: Plan,
        spawned: Spawned | None,
        covers: list[int],
    ) -> SandboxedCommand:
        env = environment(command, plan)
        discard = None if spawned is None else partial(self._discard, spawned)
        waiting = Waiting(command.argv, command.cwd, env, LINE_FD, spawned, discard, covers)
        passed = made.passed if spawned is None else ()
        return made._replace(waiting=waiting, passed=passed)

    def _discard(self, spawned: Spawned) -> None:
        """End a child that is not used, and close its fds."""
        for fd in (*spawned.fds, spawned.pidfd, spawned.listener):
            if fd >= 0:
                os.close(fd)
        if self.launcher.link.alive:
            self.launcher.discard(spawned.child, running=True)

    def _making(self, plan: Plan, joining: Joining | None) -> Making:
        return Making(plan, self._bwrap, self._upkeep, joining, self._stub())

    def _copied(
        self, template: Template, kind: Kind, joining: Joining | None, *, waits: bool
    ) -> SandboxedCommand:
        return copied(
            template,
            self._upkeep,
            tty=kind.tty,
            lasting=kind.lasting,
            joining=joining,
            waits=waits,
        )

    def _stub(self) -> int:
        """The program, which no process can change: all sandboxes share it."""
        if self._stub_fd < 0:
            self._stub_fd = programs.stub()
        return self._stub_fd

    # --- making and ending ----------------------------------------------------------------

    def _wake(self, seconds: float) -> None:
        seconds = max(seconds, _CLOCK_SECONDS)  # uvloop takes less for none at all
        due = self._loop.time() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """End what is not wanted any more, and see what is missing."""
        self._timer = None
        self._end_lost()
        now = self._loop.time()
        if self.launcher.asked_at + _PAUSE_SECONDS - now > _CLOCK_SECONDS / 2:
            self._wake(_PAUSE_SECONDS)
            return
        wanted = self._wanted(now)
        pause = self._pause(now, wanted)
        ends = _MOST_ENDS if pause <= 0 else 0
        self._sort_out(now, wanted)
        while ends and self._unusable:
            ends -= 1
            self._end(self._unusable.pop())
        if self._unusable:
            self._wake(max(pause, _ENDS_SECONDS))
            return
        missing = None if self._maker is not None else self._missing(wanted)
        if missing is not None and pause <= 0 and self._memory.is_scarce(now):
            pause = _FAILED_SECONDS
        if missing is not None and pause <= 0:
            self._maker = self._loop.create_task(self._make(*missing))
            self._maker.add_done_callback(partial(self._made, now))
        elif self._lines:
            self._wake(_LOOK_SECONDS if missing is None else pause)

    def _sort_out(self, now: float, wanted: dict[Kind, int]) -> None:
        """Set those aside that are not wanted any more, or not usable."""
        # Not each time one is made: each is looked at when it is used, and this may be while a
        # command starts.
        due = now - self._looked >= _LOOK_SECONDS
        if due:
            self._looked = now
        for kind, line in list(self._lines.items()):
            if due or len(line.standing) > wanted[kind]:
                for one in list(line.standing):
                    if len(line.standing) > wanted[kind] or not one.stands():
                        line.standing.remove(one)
                        self._unusable.append(one)
            if (kind.over or line.demand.over(now)) and not line.standing:
                del self._lines[kind]
                self._templates.keep({kind.family for kind in self._lines})

    def _missing(self, wanted: dict[Kind, int]) -> tuple[Kind, Line] | None:
        """The next one to make: of the kind that has fewest of those it wants."""
        if self._closed or len(self) >= self._most:
            return None
        found: tuple[Kind, Line] | None = None
        fewest = 1.0
        for kind, line in self._lines.items():
            share = len(line.standing) / wanted[kind] if wanted[kind] else 1.0
            if share < fewest and not line.plan.closed:
                fewest, found = share, (kind, line)
        return found

    def _wanted(self, now: float) -> dict[Kind, int]:
        """How many of each kind are to wait: none takes what another one needs."""
        wanted = {
            kind: 0 if kind.over else line.demand.wanted(now) for kind, line in self._lines.items()
        }
        most = max(1, self._most // max(1, sum(map(bool, wanted.values()))))
        return {kind: min(number, most) for kind, number in wanted.items()}

    def _pause(self, now: float, wanted: dict[Kind, int]) -> float:
        """How long none is made: no command is to wait for one that is made ahead."""
        insides = self._upkeep.insides
        if len(insides) > _MANY:
            return _LOOK_SECONDS
        if self.launcher.starting or any(one.setting_up for one in insides):
            return _PAUSE_SECONDS
        crowded = len(insides) - len(self) > self._processors
        if crowded and now - self._started < _CROWDED_SECONDS:
            return _CROWDED_SECONDS
        enough = all(
            len(line.standing) >= min(_ENOUGH, wanted[kind]) for kind, line in self._lines.items()
        )
        pause = max(
            self.launcher.asked_at + (_QUIET_SECONDS if enough else _PAUSE_SECONDS) - now,
            self._rests - now,
            self._moved + _MOVED_SECONDS - now,
            self._failed + _FAILED_SECONDS - now,
        )
        return pause if pause > _CLOCK_SECONDS / 2 else 0.0

    def _made(self, began: float, task: asyncio.Task[None]) -> None:
        self._maker, now = None, self._loop.time()
        if now - began > _COSTLY_SECONDS:
            self._rests = now + (now - began)
        if not task.cancelled() and task.exception() is not None:
            self._failed = now
            log.info("no sandbox was made ahead: %s", task.exception())
        if not self._closed:
            self._wake(_PAUSE_SECONDS)

    async def _make(self, kind: Kind, line: Line) -> None:
        """Make one, and let it wait; raises when that fails."""
        plan = line.plan
        if plan.closed:
            return
        template = self._templates.usable(kind.family, plan)
        try:
            if template is None:
                await self._make_template(kind.family, plan, line.joining)
                return
            made = self._copied(template, kind, line.joining, waits=True)
        except (Stale, Refused, SandboxUnavailable):
            return  # the next command makes another plan, or another network
        running = made.running
        assert running is not None  # noqa: S101 (copies have one)
        spec = ProcessSpec(
            made.argv,
            made.cwd,
            {},
            tty=kind.tty,
            pipe_stdin=kind.pipe_stdin,
            passed=made.passed,
            running_sandbox=running,
            waiting=_UNTOLD,
            sandboxed=True,
            sent=made.sent,
        )
        try:
            spawned = await spawn(self.launcher, spec)
        except BaseException:
            settle(spec, self._loop)
            raise
        begun = self._begun = Begun(kind, template, made, running, spawned, spec)
        try:
            await running.answer(self._loop)
        except BaseException:
            if self._begun is begun:
                self._begun = None
                self._drop(spawned, spec)
            raise
        if self._begun is begun:  # else a command could not wait for us to hear of it
            self._begun = None
            self._stand(begun, running.waits())

    async def _make_template(self, family: Family, plan: Plan, joining: Joining | None) -> None:
        """Have bubblewrap make the mounts that the next sandboxes are copies of."""
        if plan.found and not plan.beforehand:
            # A command may exchange what was found while it is set up.
            if self._planner.takes_long(plan.profile):
                return
            plan = self._planner.plan(plan.profile, careful=True)
        making = self._template_making = self._making(plan, joining)
        try:
            template = await making.in_thread(self._loop)
        except Exchanged:
            self._moved = self._loop.time()
        else:
            self._templates.put(family, template)
        finally:
            self._end_making()

    def _end_making(self) -> None:
        making, self._template_making = self._template_making, None
        if making is not None:
            making.abandon()
            making.running.settle(self._loop, _nothing)

    def _take_in(self, kind: Kind) -> None:
        """See whether the one that is being made stands by now: this loop may have been busy."""
        begun = self._begun
        if begun is not None and begun.kind == kind and begun.running.answered():
            self._begun = None
            self._stand(begun, begun.running.waits())

    def _stand(self, begun: Begun, stood: bool) -> None:
        """Let one that was set up wait; raises OSError when its mounts cannot be looked at."""
        line = self._lines.get(begun.kind)
        try:
            if not stood or self._closed or line is None:
                raise Exchanged(b"/")
            one = WaitingSandbox(begun.template, begun.made, begun.running, begun.spawned)
        except BaseException as error:
            self._drop(begun.spawned, begun.spec)
            if not isinstance(error, Exchanged):
                raise
            self._moved = self._loop.time()
            return
        begun.template.proven = True
        line.standing.append(one)
        self.launcher.watch(begun.spawned.child, lambda *_: self._exited(one))

    def _drop(self, spawned: Spawned, spec: ProcessSpec) -> None:
        self._discard(spawned)
        settle(spec, self._loop)

    def _exited(self, one: WaitingSandbox) -> None:
        """Note that a waiting sandbox has ended by itself, or was killed."""
        for line in self._lines.values():
            if one in line.standing:
                line.standing.remove(one)
                self._end(one)

    def _end_lost(self) -> None:
        """End those whose keeper is gone; what bubblewrap waits for is here, not in the keeper."""
        link, keeper = self.launcher.link, self.launcher.keeper_pid
        if keeper != self._keeper or link.bereft or not link.alive:
            self._keeper = keeper
            for standing in (self._unusable, *(line.standing for line in self._lines.values())):
                while standing:
                    self._end(standing.pop())

    def _end(self, one: WaitingSandbox) -> None:
        """End one that is not used."""
        one.close()
        if self.launcher.link.alive:
            self.launcher.forget(one.spawned.child)  # the keeper closes its line, which ends it
        one.running.settle(self._loop, _nothing, looks=0)  # it lives

    def close(self) -> None:
        """End all of them, without waiting, and make no more."""
        self._closed = True
        self._reports.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._maker is not None and not self._loop.is_closed():
            self._maker.cancel()
        self._end_making()
        for standing in (self._unusable, *(line.standing for line in self._lines.values())):
            while standing:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._end(standing.pop())
        self._lines.clear()
        self._templates.close()
        if self._stub_fd >= 0:
            os.close(self._stub_fd)
            self._stub_fd = -1


def _nothing() -> None:
    """Do nothing: no command ever ran in it."""
