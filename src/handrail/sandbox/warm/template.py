"""A mount namespace that bubblewrap has made for a plan, of which sandboxes are copies.

No process is in it: two descriptors keep it, its mounts and the kernel's report on them.  So it is
gone with the program that holds it.  It is used only while it would make no difference to make it
anew: its plan is the one that a cold start would take, and the kernel has reported no change of its
mounts.  A mount goes away with the name that it covers; a name that is moved takes its mount along,
and then the plan is not true any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading

from handrail.sandbox.bwrap.arguments import (
    INFO_FD,
    LINE_FD,
    PROC_HIDDEN,
    PROC_READABLE,
    Bind,
    Empty,
    EmptyFile,
    template_steps,
)
from handrail.sandbox.bwrap.command import wrap
from handrail.sandbox.bwrap.premount import IF_THERE
from handrail.sandbox.plan.safe_open import Exchanged
from handrail.sandbox.sandboxed_command import Command
from handrail.sandbox.syscalls import seccomp_filter
from handrail.sandbox.warm import programs
from handrail.sandbox.warm.copy_inside import Inside
from handrail.sandbox.warm.copy_program import Copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from handrail.sandbox.bwrap.instance import RunningSandbox
    from handrail.sandbox.bwrap.instances import Instances
    from handrail.sandbox.loopback import Joining
    from handrail.sandbox.plan.plan import Plan
    from handrail.sandbox.probe import Bubblewrap
    from handrail.sandbox.sandboxed_command import SandboxedCommand

#: Above every number that bubblewrap is given, and the last of these.
_ABOVE = 320
_SAID = _ABOVE - 1
_COMMAND = Command((b"-",), b"/", {})


class Template:
    """The mounts, the plan they are of, and the programs that copy them."""

    def __init__(
        self, plan: Plan, namespace: int, mounts: int, *, own_network: bool, connects: bool
    ) -> None:
        """It owns the descriptors: the mount namespace, and its table.

        ``own_network``: copies have one.  ``connects``: their ``connect`` is made for them.
        """
        self.connects = connects
        self.plan = plan
        self.namespace = namespace
        #: Whether a copy was seen to stand: before, none is made for a command that is there.
        self.proven = False
        self._mounted = plan.mounted()
        self._mounts = mounts
        self._changed = self._confirmed = False
        self._changes = select.poll()
        self._changes.register(mounts, select.POLLPRI)
        self._own_network = own_network
        self._programs: dict[tuple[bool, bool, bool, bool], int] = {}

    def stands(self) -> bool:
        """Whether its mounts are those that were made."""
        # The kernel reports a change once: whatever it was, this one is never used any more.
        self._changed = self._changed or bool(self._changes.poll(0))
        return not self._changed

    def confirmed(self) -> bool:
        """Whether its mounts are where its plan has them; to be asked when that is true now.

        A name may have been exchanged while bubblewrap made them, and put back since.  Then a mount
        is on what was there meanwhile and has moved with it, of which the kernel reports nothing.
        Looked at once: from then on the plan is false whenever one is elsewhere.
        """
        if not self._confirmed and not self._changed:
            self._confirmed = not _missing(self.plan, self._mounts)
            self._changed = not self._confirmed
        return self._confirmed

    def is_of(self, plan: Plan) -> bool:
        """Whether its mounts are those of a plan that is true now.

        It may be of another that makes the same, as when a private place that came or went makes no
        difference, or of one that was made for the same profile and is true as well.
        """
        own = self.plan
        if own is plan or self._mounted == plan.mounted():
            return True
        return not own.closed and own.profile == plan.profile and own.still_true()

    def program(self, *, terminal: bool, lasting: bool, waits: bool, announces: bool) -> int:
        """An fd of the program that makes such a copy."""
        key = terminal, lasting, waits, announces
        if key not in self._programs:
            paths = {step.path for step in self.plan.steps}
            inside = Inside(
                os.geteuid(),
                os.getegid(),
                seccomp_filter.program(os.uname().machine, unix_sockets=self.connects),
                [path for path in PROC_READABLE if path in paths],
                [path for path in PROC_HIDDEN if path in paths],
                terminal,
            )
            covers = [(mask.path, mask.directory) for mask in self.plan.masks]
            # One that waits is looked at when its command comes.
            mounted = () if waits else sorted(_places(self.plan))
            announced = b""
            if announces:
                announced = seccomp_filter.announcing(os.uname().machine, watch=False)
            copy = Copy(covers, mounted, self._own_network, lasting, waits, announced, inside)
            self._programs[key] = programs.copier(copy)
        return self._programs[key]

    def close(self) -> None:
        """Close the descriptors: no further copy is made, and none that waits is used."""
        self._changed = True  # which would not be reported any more
        for fd in (self.namespace, self._mounts, *self._programs.values()):
            os.close(fd)


class Making:
    """A template that is being made: begun on the event loop, done in any thread."""

    def __init__(
        self, plan: Plan, bwrap: Bubblewrap, upkeep: Instances, joining: Joining | None, stub: int
    ) -> None:
        """Raises Refused, Stale or SandboxUnavailable."""
        self._plan = plan
        # Lasting: the stub ends with this process, whose pipe it reads, and bubblewrap with it.
        # One that is killed with its parent leaves a child behind that waits for it just then.
        self._made: SandboxedCommand = wrap(
            _COMMAND, plan, bwrap, upkeep, lasting=True, joining=joining, stub=stub
        )
        self._own_network = joining is None and not plan.profile.network
        self._connects = bwrap.connects
        self._thread: threading.Thread | None = None
        self._template: Template | None = None
        self._error: Exception | None = None

    @property
    def running(self) -> RunningSandbox:
        """The processes around it, until it is done."""
        assert self._made.running is not None  # noqa: S101 (bubblewrap's have one)
        return self._made.running

    async def in_thread(self, loop: AbstractEventLoop) -> Template:
        """Finish it in a thread of its own; raises as `finish`."""
        done: Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop, done), daemon=True)
        self._thread.start()
        await done
        if self._error is not None:
            raise self._error
        template, self._template = self._template, None
        assert template is not None  # noqa: S101 (made, for there is no error)
        return template

    def _run(self, loop: AbstractEventLoop, done: Future[None]) -> None:
        try:
            self._template = self.finish()
        except Exception as error:  # noqa: BLE001 (raised in the loop)
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, done)

    def abandon(self) -> None:
        """Wait until bubblewrap has ended, which takes some milliseconds; nothing is left then."""
        if self._thread is not None:
            self._thread.join()
        if self._template is not None:
            self._template.close()
            self._template = None

    def finish(self) -> Template:
        """Start bubblewrap, take its mounts, and end it; takes some milliseconds.

        Raises OSError, or Exchanged when the mounts are not those of the plan.
        """
        line, hold = os.pipe2(os.O_CLOEXEC)
        pid = 0
        try:
            try:
                pid = _start(self._made, line)
            finally:
                os.close(line)
                self._made.sent()
            running = self.running
            if not running.stands():
                raise Exchanged(b"/")
            return self._taken(running.first())
        finally:
            os.close(hold)  # the stub ends, and so do the others
            if pid:
                with contextlib.suppress(ChildProcessError):  # a program may reap all its children
                    os.waitpid(pid, 0)

    def _taken(self, first: int) -> Template:
        namespace = os.open(f"/proc/{first}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        mounts = -1
        try:
            # Opened first: what changes from here on is reported.
            mounts = os.open(f"/proc/{first}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            missing = _missing(self._plan, mounts)
            if missing:
                raise Exchanged(min(missing))
        except BaseException:
            os.close(namespace)
            if mounts >= 0:
                os.close(mounts)
            raise
        return Template(
            self._plan,
            namespace,
            mounts,
            own_network=self._own_network,
            connects=self._connects,
        )


def _resolve(done: Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _start(made: SandboxedCommand, line: int) -> int:
    """Start bubblewrap below this process; it ends when the other end of ``line`` is closed."""
    theirs: list[int] = []
    actions: list[tuple[int, ...] | tuple[int, int, bytes, int, int]]
    actions = [(os.POSIX_SPAWN_OPEN, fd, b"/dev/null", os.O_RDWR, 0) for fd in range(3)]
    try:
        passed = [*made.passed, (LINE_FD, line)]
        said = dict(made.passed)[INFO_FD]
        # So that there is a reader for what it says when this process is killed.
        theirs.append(os.open(f"/proc/self/fd/{said}", os.O_RDONLY | os.O_CLOEXEC))
        passed.append((_SAID, theirs[-1]))
        for number, fd in passed:
            theirs.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
            actions.append((os.POSIX_SPAWN_DUP2, theirs[-1], number))
        return os.posix_spawn(
            made.argv[0], made.argv, made.env, file_actions=actions, setsid=True, setsigmask=()
        )
    finally:
        for fd in theirs:
            os.close(fd)


def _missing(plan: Plan, mounts: int) -> set[bytes]:
    """Where a template of this plan has nothing mounted, by the table of its mounts."""
    os.lseek(mounts, 0, os.SEEK_SET)
    text = b""
    while piece := os.read(mounts, 1 << 16):
        text += piece
    there = {line.split(b" ", 5)[4] for line in text.splitlines()}
    return {_escaped(place) for place in _places(plan)} - there


def _places(plan: Plan) -> set[bytes]:
    """Where a template has something mounted."""
    steps = template_steps(plan.uncovered())
    places = {step.path for step in steps if isinstance(step, Bind | Empty | EmptyFile)}
    for record in plan.beforehand.split(b"\0")[:-1]:
        how, _, _, path = record.split(b" ", 3)
        if not how.endswith(IF_THERE):
            places.add(path)
    return places


def _escaped(path: bytes) -> bytes:
    """A path as the kernel writes it."""
    for char in (b"\\", b" ", b"\t", b"\n"):
        path = path.replace(char, b"\\%03o" % char[0])
    return path
