"""What goes on in a sandbox that runs: whom a signal reaches, and when nobody is left.

bwrap itself stays outside and would die of a signal that is meant for the command, taking
everything along.  It tells the number of the first process of the new namespace by ``--info-fd``;
from there the command and its descendants are found.  When that first process is gone the kernel
has ended all the others, and only then is anything that protected names from them taken away.
"""

from __future__ import annotations

import os

from handrail.sandbox.plan.placeholders import PlaceholderLease

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable

    from handrail.sandbox.bwrap.instances import Instances
    from handrail.sandbox.denial import Denial
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder
    from handrail.sandbox.syscalls.lazy_supervisor import Keep, LazySupervisor
else:
    import _signal  # the C part: ``signal`` itself would import enum


#: How often it is looked whether the first process is on its way out, before it is waited for.
_LOOKS = 10
#: Of the kernel's flags of a thread, as in its ``stat``.
_PF_EXITING = 4
#: Those of this program whose end has not been seen.  They are counted here and looked after by
#: those who made them: they may belong to other threads.
_living: set[RunningSandbox] = set()


def others_at_work() -> bool:
    """Whether somebody is in a sandbox of ours who could exchange names while another is made."""
    return any(not inside.trusted for inside in list(_living))  # in one step, for other threads


class RunningSandbox:
    """One sandbox, from the moment its descriptors are made until nothing of it lives."""

    __slots__ = (
        "_attendance",
        "_bwrap",
        "_closing",
        "_info",
        "_lease",
        "_looking",
        "_namespace",
        "_ready",
        "_said",
        "_tty",
        "_upkeep",
        "_waiting",
        "_watcher",
        "pid",
        "trusted",
    )

    def __init__(
        self,
        info: int,
        closing: tuple[int, ...],
        lease: PlaceholderLease | None,
        tty: bool,
        ready: int = -1,
        watcher: DenialRecorder | None = None,
        upkeep: Instances | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        _living.add(self)
        #: Of whoever made it.
        self._upkeep = upkeep
        if upkeep is not None:
            upkeep.insides.add(self)
        #: What runs in there is ours.
        self.trusted = trusted
        self._info = info
        self._closing = closing
        self._lease = lease
        self._tty = tty
        self._ready = ready
        self._watcher = watcher
        self._attendance: LazySupervisor | None = None
        #: Of ``set_up`` and of ``settle``, while they wait: on which loop, and for what.
        self._looking: tuple[AbstractEventLoop, Future[None]] | None = None
        self._waiting: tuple[AbstractEventLoop, int, list[Callable[[], None]]] | None = None
        self._said = b""
        self._namespace = 0
        self._bwrap = 0  # of one that a server before us has set up
        #: Of the first process inside, as seen here; 0 while it is not known.
        self.pid = 0

    @classmethod
    def found(cls, bwrap: int, *, tty: bool) -> RunningSandbox:
        """One that a server before us has set up; ``bwrap`` is the process we know."""
        inside = cls(-1, (), None, tty)
        inside._bwrap = bwrap
        return inside

    def attend(self, listener: int, loop: AbstractEventLoop, keep: Keep | None = None) -> None:
        """Answer what is called in there; ``keep`` has the keeper hold what is being answered."""
        self._attendance = self._attended_by(listener)
        self._attendance.begin(loop, keep)

    def go_on(self, listener: int, ledger: int, loop: AbstractEventLoop, keep: Keep) -> None:
        """The same for one that was found, with what was being answered (or -1)."""
        self._attendance = self._attended_by(listener, ledger)
        self._attendance.begin(loop, keep)

    def attend_alone(self, listener: int) -> None:
        """The same for whoever has no event loop."""
        self._attendance = self._attended_by(listener)
        self._attendance.begin_alone()

    def _attended_by(self, listener: int, ledger: int = -1) -> LazySupervisor:
        from handrail.sandbox.syscalls.lazy_supervisor import (
            LazySupervisor,  # when the command runs already
        )

        return LazySupervisor(listener, self._watcher, ledger)

    @property
    def denials(self) -> list[Denial]:
        """What is known to have been refused in there."""
        return [] if self._attendance is None else self._attendance.denials

    @property
    def holdings(self) -> tuple[int, int]:
        """The listener and the ledger of its calls; -1: none."""
        return (-1, -1) if self._attendance is None else self._attendance.holdings

    def park(self) -> None:
        """Another server goes on with it."""
        self._forget()
        if self._attendance is not None:
            self._attendance.close()

    def sent(self) -> None:
        """Whoever starts it has descriptors of its own now."""
        if self._upkeep is not None:
            with self._upkeep.lock:
                closing, self._closing = self._closing, ()
                for fd in closing:
                    os.close(fd)

    async def set_up(self, loop: AbstractEventLoop) -> bool:
        """Whether bwrap has come to start the command; it may have met what vanished meanwhile.

        It reads our byte and closes last of all; with the byte unread the line is reset instead.
        """
        if self._ready < 0:
            return True
        seen: Future[None] = loop.create_future()
        self._looking = loop, seen
        loop.add_reader(self._ready, _tell, seen)
        try:
            await seen
            return self._ready >= 0 and self.stood()
        finally:
            self._close_ready()

    def stands(self) -> bool:
        """The same for whoever has nothing else to do meanwhile."""
        if self._ready < 0:
            return True
        try:
            return self.stood()
        finally:
            self._close_ready()

    def stood(self) -> bool:
        """After bwrap's exit: whether it had come to start the command."""
        try:
            return os.read(self._ready, 1) == b""
        except ConnectionError:
            return False

    def abandon(self) -> None:
        """It was never started."""
        self._end()

    def leave(self) -> None:
        """Somebody in there lives on, and we are going; whoever comes later clears away."""
        lease, self._lease = self._lease, None
        self._let_go()
        if lease is not None:
            lease.leave()

    def disown(self) -> None:
        """In a child after a fork: this is the parent's, and so are its loops; nothing is told."""
        _living.discard(self)
        waiting, self._waiting = self._waiting, None
        held = [*self._closing, self._info, self._ready, -1 if waiting is None else waiting[1]]
        self._closing, self._info, self._ready, self._looking = (), -1, -1, None
        for fd in held:
            if fd >= 0:
                os.close(fd)
        if self._attendance is not None:
            self._attendance.disown()
        if self._lease is not None:
            self._lease.disown()

    def over(self) -> bool:
        """bwrap has exited: whether everybody inside is gone too, and all is cleared away."""
        pidfd = self._first_process()
        if pidfd < 0:
            self._end()
            return True
        os.close(pidfd)
        return False

    def settle(self, loop: AbstractEventLoop, done: Callable[[], None]) -> None:
        """bwrap has exited: call back when everybody inside is gone; at once if they are."""
        if self._waiting is not None:
            self._waiting[2].append(done)
            return
        pidfd = self._first_process()
        if pidfd < 0:
            self._end()
            done()
            return
        self._waiting = loop, pidfd, [done]
        loop.add_reader(pidfd, self._end)

    def wait(self, seconds: float | None = None) -> None:
        """The same for whoever has nothing else to do."""
        pidfd = self._first_process()
        if pidfd >= 0:
            import select  # only for those whose command leaves somebody behind

            gone = select.select([pidfd], [], [], seconds)[0]
            os.close(pidfd)
            if not gone:
                return
        self._end()

    def signal(self, number: int, *, tree: bool) -> int:
        """Signal the command's group, or everybody inside; how many were reached."""
        if not self._know():
            return 0
        if tree:
            return sum(_sent(os.kill, pid, number) for pid in _descendants(self.pid))
        # bwrap's session, of which the first process ignores everything; or the command's own.
        groups = _children(self.pid) if self._tty else [self.pid]
        return sum(_sent(os.killpg, pid, number) for pid in groups)

    def _know(self) -> bool:
        """Read what bwrap has told about its first process so far."""
        if self.pid == 0 and self._info >= 0:
            try:
                self._said += os.read(self._info, 4096)
            except BlockingIOError:
                pass
            if self._said.endswith(b"}\n"):
                self.pid = _number(self._said, b'"child-pid":')
                self._namespace = _number(self._said, b'"pid-namespace":')
        elif self.pid == 0 and self._bwrap:
            for child in _children(self._bwrap):
                self._namespace = _namespace(child)
                self.pid = child if self._namespace != _namespace(self._bwrap) else 0
        return self.pid != 0

    def _first_process(self) -> int:
        """A descriptor of the first process if it lives and is not alone, else -1."""
        if not self._know():
            return -1  # bwrap ended before it made one
        # Orphans inside are its children, in one step under the kernel's lock: no child, nobody.
        # Its own way out through all its mounts takes a while, and harms nobody.
        for _ in range(_LOOKS):
            if not _children(self.pid) and _leaves(self.pid):
                return -1
            os.sched_yield()  # it has been killed, but may wait for a processor to die on
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return -1
        import select

        # Not to be seen, 0, only while it is ending.
        namespace = _namespace(self.pid)
        ours = namespace in (self._namespace, 0)
        if ours and not select.select([pidfd], [], [], 0)[0]:
            if namespace:
                self._kill(pidfd)
            return pidfd
        os.close(pidfd)
        return -1

    def _kill(self, pidfd: int) -> None:
        """It dies with bwrap, or is ended by the keeper; but somebody in there may have talked it
        out of that, or bwrap was killed before it could ask to be told: it starts the command
        first."""
        try:
            _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
        except OSError:
            pass  # it has ended

    def _end(self) -> None:
        """Nobody is in there: clear away, and say so."""
        waiting = self._waiting
        self._let_go()
        if self._lease is not None:
            lease, self._lease = self._lease, None
            lease.release()
        if waiting is not None:
            for done in waiting[2]:
                done()

    def _let_go(self) -> None:
        """Of everything but the lease.  On its own loop, or when that is closed."""
        self._forget()
        self.sent()
        if self._attendance is not None:
            self._attendance.close()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            loop, pidfd, _ = waiting
            if not loop.is_closed():
                loop.remove_reader(pidfd)
            os.close(pidfd)
        info, self._info = self._info, -1
        if info >= 0:
            os.close(info)
        self._close_ready()

    def _forget(self) -> None:
        _living.discard(self)
        if self._upkeep is not None:
            self._upkeep.insides.discard(self)

    def _close_ready(self) -> None:
        ready, self._ready = self._ready, -1
        looking, self._looking = self._looking, None
        if ready < 0:
            return
        if looking is not None and not looking[0].is_closed():
            looking[0].remove_reader(ready)
            _tell(looking[1])
        os.close(ready)


def _tell(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _number(text: bytes, name: bytes) -> int:
    """One number of bwrap's little JSON."""
    digits = text.partition(name)[2].split(b",")[0].split(b"\n")[0].strip()
    return int(digits) if digits.isdigit() else 0


def _sent(send: Callable[[int, int], None], pid: int, number: int) -> int:
    try:
        send(pid, number)
    except OSError:
        return 0
    return 1


def _namespace(pid: int) -> int:
    """The number of the namespace in which this process has its own; 0: not to be seen."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def _children(pid: int) -> list[int]:
    """Of all its threads."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (OSError, ValueError):
        pass  # it is ending
    return found


def _leaves(pid: int) -> bool:
    """Whether none of its threads can run any more: each is on its way out, or gone."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                if not int(file.read().rpartition(b")")[2].split()[6]) & _PF_EXITING:
                    return False
    except OSError:
        pass  # gone
    return True


def family_of(pid: int) -> list[int]:
    """Everybody in the sandbox this process is in."""
    first, namespace = pid, _namespace(pid)
    while namespace:
        with open(f"/proc/{first}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        if _namespace(parent) != namespace:
            break
        first = parent
    return [first, *_descendants(first)]


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found
