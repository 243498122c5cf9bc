"""A running sandbox: signal its processes, and notice when the last one has ended.

bwrap itself runs outside; a signal meant for the command would kill it and everything with it.  It
reports the pid of the first process of the new PID namespace through ``--info-fd``; from there the
command and its descendants are found.  When that first process is gone the kernel has killed all
others, and only then are the placeholders removed that protected paths from them.
"""

from __future__ import annotations

import os

from handrail.keeper.proc_children import (
    children_of,
    descendants_of,
    has_ended,
    is_alone_and_exiting,
    pid_namespace,
)
from handrail.sandbox.plan.placeholder_lease import PlaceholderLease

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Sequence

    from handrail.network.managed.way_out import WayOut
    from handrail.sandbox.bwrap.instances import Instances
    from handrail.sandbox.denial import Denial
    from handrail.sandbox.plan.placeholder_lease import Placeholder
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder
    from handrail.sandbox.syscalls.lazy_supervisor import Keep, LazySupervisor
else:
    import _signal  # the C part: ``signal`` itself would import enum


#: How long the kernel may take to end a process that was killed.
_KILLED_SECONDS = 2.0
#: How often the first process is checked for exiting, before it is waited for.
_LOOKS = 16
#: With more placeholders, taking the reports of their end is a part of a start that is noticed.
_MANY_COVERS = 16
#: The size of what the program says that makes copies: the first process, its PID namespace.
_COPY_INFO = 16
#: Sandboxes of this program that have not ended.  Only counted here; each belongs to the Instances
#: that made it, perhaps in another thread.
_running: set[RunningSandbox] = set()


def others_at_work() -> bool:
    """Is any untrusted sandbox running?  It could swap paths while a new one is set up."""
    return any(not inside.trusted for inside in list(_running))  # one atomic copy


class RunningSandbox:
    """One sandbox, from the creation of its fds until its last process has ended."""

    __slots__ = (
        "_closing",
        "_copied",
        "_covering",
        "_info",
        "_instances",
        "_lease",
        "_looking",
        "_mounts",
        "_namespace",
        "_ready",
        "_said",
        "_spare",
        "_supervisor",
        "_tty",
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
        copied: bool = False,
        covering: bool = False,
    ) -> None:
        """``copied``: it is made by ``warm/copy_program.py``, which reports in a form of its own.
        ``covering``: that waits to cover missing names when the command comes."""
        _running.add(self)
        #: The Instances that made it.
        self._instances = upkeep
        if upkeep is not None:
            upkeep.insides.add(self)
        #: What runs in it is our own code.
        self.trusted = trusted
        self._info = info
        self._closing = closing
        self._lease = lease
        self._tty = tty
        self._ready = ready
        self._copied, self._covering = copied, covering
        self._watcher = watcher
        self._supervisor: LazySupervisor | None = None
        #: While ``set_up`` and ``settle`` wait: the loop, and what they wait for.
        self._looking: tuple[AbstractEventLoop, Future[None]] | None = None
        self._waiting: tuple[AbstractEventLoop, int, list[Callable[[], None]]] | None = None
        #: Fds of others that a child after a fork must not keep.
        self._spare: tuple[int, ...] = ()
        #: Keeps its mounts until the end was told: its first process would wait for that.
        self._mounts = -1
        self._said = b""
        self._namespace = 0
        #: Pid of the first process in the sandbox, in our PID namespace; 0 while unknown.
        self.pid = 0

    def attend(
        self,
        listener: int,
        loop: AbstractEventLoop,
        keep: Keep | None = None,
        way_out: WayOut | None = None,
    ) -> None:
        """Answer its seccomp notifications; ``keep`` lets the keeper hold the ledger.

        ``way_out``: of a managed network, opened when a process first connects to it.
        """
        self._supervisor = self._make_supervisor(listener, way_out=way_out)
        self._supervisor.begin(loop, keep)

    def go_on(
        self,
        listener: int,
        ledger: int,
        loop: AbstractEventLoop,
        keep: Keep,
        way_out: WayOut | None = None,
    ) -> None:
        """Like `attend`, for a recovered sandbox, with the ledger of pending calls (or -1)."""
        self._supervisor = self._make_supervisor(listener, ledger, way_out)
        self._supervisor.begin(loop, keep)

    def attend_alone(self, listener: int) -> None:
        """Version of `attend` without an event loop."""
        self._supervisor = self._make_supervisor(listener)
        self._supervisor.begin_alone()

    def _make_supervisor(
        self, listener: int, ledger: int = -1, way_out: WayOut | None = None
    ) -> LazySupervisor:
        from handrail.sandbox.syscalls.lazy_supervisor import (
            LazySupervisor,  # imported once the command runs
        )

        return LazySupervisor(listener, self._watcher, ledger, way_out)

    @property
    def denials(self) -> list[Denial]:
        """What is known to have been refused in the sandbox."""
        return [] if self._supervisor is None else self._supervisor.denials

    @property
    def holdings(self) -> tuple[int, int]:
        """The fds of the notification listener and its ledger; -1: none."""
        return (-1, -1) if self._supervisor is None else self._supervisor.holdings

    def park(self) -> None:
        """Stop answering notifications: another server takes over."""
        self._forget()
        if self._supervisor is not None:
            self._supervisor.close()

    def sent(self) -> None:
        """Close the fds for the child, which now has its own copies."""
        if self._instances is not None:
            with self._instances.lock:
                closing, self._closing = self._closing, ()
                for fd in closing:
                    os.close(fd)

    @property
    def setting_up(self) -> bool:
        """Whether it does not stand yet."""
        return self._ready >= 0 and not self._covering

    def first(self) -> int:
        """The pid of the first process in it; 0: not known yet."""
        return self.pid if self._read_info() else 0

    def hold(self, fds: tuple[int, ...]) -> None:
        """Note the fds that are held of it while it waits for its command."""
        self._spare = fds

    async def answer(self, loop: AbstractEventLoop) -> None:
        """Wait until something is seen there."""
        seen: Future[None] = loop.create_future()
        looking = self._looking = loop, seen
        loop.add_reader(self._ready, set_done, seen)
        try:
            await seen
        finally:
            if self._looking is looking:
                self._look_away()

    def keep_mounts(self, fd: int) -> None:
        """Hold an fd of its mounts until it has ended: taking them down takes a while."""
        self._mounts = fd

    def begin(self, masks: Sequence[Placeholder]) -> list[int]:
        """Note that a waiting sandbox has its command, to which the fds belong from now on.

        These missing names are made, and covered before the command begins: gives inode and device
        of each.  Raises Stale, or Refused.
        """
        if self._lease is not None:
            self._lease.fill(masks)
        self._spare, self._covering = (), False
        self.trusted = False
        return self.covers(masks)

    def covers(self, masks: Sequence[Placeholder]) -> list[int]:
        """Inode and device of each placeholder that was made."""
        made = {} if self._lease is None else self._lease.made
        return [number for mask in masks for number in reversed(made[mask])]

    def let_start(self) -> None:
        """Let bwrap start the command of a guarded sandbox; once."""
        import _socket

        os.read(self._ready, 1)  # else bwrap would be told that we are gone
        line = _socket.socket(fileno=self._ready)
        line.shutdown(_socket.SHUT_WR)
        line.detach()

    async def set_up(self, loop: AbstractEventLoop) -> bool:
        """Wait for bwrap to start the command; False if it failed, as when a path vanished
        meanwhile.

        bwrap reads our byte and closes the socket last; if the byte is unread the socket is reset.
        """
        if self._ready < 0:
            return True
        try:
            await self.answer(loop)
            return self._ready >= 0 and self.stood()
        finally:
            self._close_ready()

    def answered(self) -> bool:
        """Whether `waits` would not wait; before it has been called."""
        if self._ready < 0 or (self._lease is not None and not self._covering):
            return False
        import select

        looked = select.poll()
        looked.register(self._ready, select.POLLIN)
        return bool(looked.poll(0))

    def waits(self) -> bool:
        """Whether one that was set up waits for its command, with all that it needs for it."""
        if not self._covering:
            return self._lease is None and self.stands()
        from handrail.sandbox.warm.copy_program import WAITS

        self._look_away()
        try:
            return os.read(self._ready, 1) == WAITS
        except ConnectionError:
            return False

    def stands(self) -> bool:
        """Blocking version of `set_up`."""
        if self._ready < 0:
            return True
        try:
            return self.stood()
        finally:
            self._close_ready()

    def stood(self) -> bool:
        """After bwrap's exit: whether it had got as far as starting the command."""
        try:
            return os.read(self._ready, 1) == b""
        except ConnectionError:
            return False

    def abandon(self) -> None:
        """Release everything: it was never started, or only made ahead."""
        self.wait(_KILLED_SECONDS)  # bwrap would make names anew that it is about to cover
        if self in _running:
            self._end()

    def leave(self) -> None:
        """Let go while processes in it live on; a later run removes its placeholders."""
        lease, self._lease = self._lease, None
        self._release()
        if lease is not None:
            lease.leave()

    def disown(self) -> None:
        """Close our fds in a child after a fork; the sandbox and its loops belong to the parent."""
        _running.discard(self)
        waiting, self._waiting = self._waiting, None
        held = [*self._closing, self._info, self._ready, -1 if waiting is None else waiting[1]]
        held += [*self._spare, self._mounts]
        self._closing, self._info, self._ready, self._looking = (), -1, -1, None
        self._spare, self._mounts = (), -1
        for fd in held:
            if fd >= 0:
                os.close(fd)
        if self._supervisor is not None:
            self._supervisor.disown()
        if self._lease is not None:
            self._lease.disown()

    def settle(
        self, loop: AbstractEventLoop, done: Callable[[], None], looks: int = _LOOKS
    ) -> None:
        """After bwrap's exit: call ``done`` once no process is left in it, at once if so now."""
        if self._waiting is not None:
            self._waiting[2].append(done)
            return
        pidfd = self._first_process(looks)
        if pidfd < 0:
            self._end()
            done()
            return
        self._waiting = loop, pidfd, [done]
        loop.add_reader(pidfd, self._end)

    def wait(self, seconds: float | None = None) -> None:
        """Blocking version of `settle`, at most ``seconds`` long."""
        pidfd = self._first_process()
        if pidfd >= 0:
            gone = has_ended(pidfd, seconds)  # only if the command leaves processes behind
            os.close(pidfd)
            if not gone:
                return
        self._end()

    def signal(self, number: int, *, tree: bool) -> int:
        """Signal the command's process group, or all processes; return how many were reached.

        0 while the command is not started: the caller tries again.
        """
        if not self._read_info():
            return 0
        if tree:
            return sum(_sent(os.kill, pid, number) for pid in descendants_of(self.pid))
        commands = children_of(self.pid)
        if not commands:
            return 0  # not started yet: the first process, which is there before, ignores signals
        # bwrap's session, or the command's own.
        groups = commands if self._tty else [self.pid]
        return sum(_sent(os.killpg, pid, number) for pid in groups)

    def _read_info(self) -> bool:
        """Read bwrap's report about the first process as far as it has come."""
        if self.pid == 0 and self._info >= 0:
            try:
                self._said += os.read(self._info, 4096)
            except BlockingIOError:
                pass
            if self._copied and len(self._said) == _COPY_INFO:
                self.pid = int.from_bytes(self._said[:4], "little")
                self._namespace = int.from_bytes(self._said[8:], "little")
            elif not self._copied and self._said.endswith(b"}\n"):
                self.pid = _number(self._said, b'"child-pid":')
                self._namespace = _number(self._said, b'"pid-namespace":')
        return self.pid != 0

    def _first_process(self, looks: int = _LOOKS) -> int:
        """Open a pidfd of the first process if it lives and is not alone, else -1."""
        if not self._read_info():
            return -1  # bwrap ended before it started one
        # Orphans become its children atomically under the kernel's lock: no child, no process left.
        # Tearing down its mounts takes it a while, and needs no waiting.
        for _ in range(looks):
            if is_alone_and_exiting(self.pid):
                return -1
            os.sched_yield()  # it was killed, but may still wait for a CPU
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return -1
        # The namespace is unreadable (0) only while the process is exiting.
        namespace = pid_namespace(self.pid)
        ours = namespace in (self._namespace, 0)
        if ours and not has_ended(pidfd, 0):
            if namespace:
                self._kill(pidfd)
            return pidfd
        os.close(pidfd)
        return -1

    def _kill(self, pidfd: int) -> None:
        """Kill it: the command may have cleared its PDEATHSIG, or bwrap died before setting it."""
        try:
            _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
        except OSError:
            pass  # it has exited

    def _end(self) -> None:
        """Release everything and call the callbacks: no process is left."""
        waiting = self._waiting
        self._release()
        if self._lease is not None:
            lease, self._lease = self._lease, None
            many = len(lease.made) > _MANY_COVERS
            lease.release()
            if many and self._instances is not None and self._instances.uncovered is not None:
                self._instances.uncovered()
        if waiting is not None:
            for done in waiting[2]:
                done()

    def _release(self) -> None:
        """Release everything but the lease.  Runs on its own loop, or when that is closed."""
        self._forget()
        self.sent()
        if self._supervisor is not None:
            self._supervisor.close()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            loop, pidfd, _ = waiting
            if not loop.is_closed():
                loop.remove_reader(pidfd)
            os.close(pidfd)
        info, self._info = self._info, -1
        if info >= 0:
            os.close(info)
        mounts, self._mounts = self._mounts, -1
        if mounts >= 0:
            from handrail.sandbox.slow_close import close_later  # for sandboxes that waited

            close_later((mounts,))
        self._close_ready()

    def _forget(self) -> None:
        _running.discard(self)
        if self._instances is not None:
            self._instances.insides.discard(self)

    def _close_ready(self) -> None:
        self._look_away()
        ready, self._ready = self._ready, -1
        if ready >= 0:
            os.close(ready)

    def _look_away(self) -> None:
        """Stop waiting for the ready socket."""
        looking, self._looking = self._looking, None
        if looking is not None and self._ready >= 0 and not looking[0].is_closed():
            looking[0].remove_reader(self._ready)
            set_done(looking[1])


def set_done(future: Future[None]) -> None:
    """``futures.set_done``: that module would be one more for `handrail run` to load."""
    if not future.done():
        future.set_result(None)


def _number(text: bytes, name: bytes) -> int:
    """Parse one number from bwrap's small JSON."""
    digits = text.partition(name)[2].split(b",")[0].split(b"\n")[0].strip()
    return int(digits) if digits.isdigit() else 0


def _sent(send: Callable[[int, int], None], pid: int, number: int) -> int:
    try:
        send(pid, number)
    except OSError:
        return 0
    return 1
