"""Start the syscall supervisor when the first seccomp notification arrives.

Most commands never cause one, so the supervisor and its imports are loaded with the first.  On an
event loop a reader callback notices it; a program without a loop uses a thread.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from handrail.network.managed.way_out import WayOut
    from handrail.sandbox.denial import Denial
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder
    from handrail.sandbox.syscalls.supervisor import Supervisor

    #: Give the keeper a copy of a fd; raises OSError when the keeper is too busy.
    Keep = Callable[[int], None]

_POLLIN = 1
#: Delay before a keeper that was too busy is asked again.
_BUSY_SECONDS = 0.01


class LazySupervisor:
    """The notifications of one sandbox; owns the fds it is given."""

    __slots__ = ("_ledger", "_listener", "_lock", "_loop", "_supervisor", "_watcher", "_way_out")

    def __init__(
        self,
        listener: int,
        watcher: DenialRecorder | None = None,
        ledger: int = -1,
        way_out: WayOut | None = None,
    ) -> None:
        self._listener = listener
        self._watcher = watcher
        self._way_out = way_out
        self._ledger = ledger
        self._loop: AbstractEventLoop | None = None
        self._supervisor: Supervisor | None = None
        self._lock: LockType | None = None

    def begin(self, loop: AbstractEventLoop, keep: Keep | None) -> None:
        """Answer notifications from now on."""
        self._loop = loop
        if self._ledger >= 0:  # some may be pending since a previous server died
            self._called(None)
        else:
            loop.add_reader(self._listener, self._readable, keep)

    def begin_alone(self) -> None:
        """Version of `begin` without an event loop."""
        import _thread  # cheaper to import than threading, which few commands need

        self._lock = _thread.allocate_lock()
        # An fd of its own: the sandbox may end, and `close` close ours, before the thread runs.
        _thread.start_new_thread(self._wait, (os.dup(self._listener),))

    @property
    def holdings(self) -> tuple[int, int]:
        """The listener fd and the ledger fd, to pass to another keeper; -1: none."""
        if self._listener < 0:
            return -1, -1
        ledger = self._ledger if self._supervisor is None else self._supervisor.ledger_fd
        return self._listener, ledger

    @property
    def denials(self) -> list[Denial]:
        """The denials recorded so far."""
        return [] if self._supervisor is None else self._supervisor.denials

    def close(self) -> None:
        """Stop answering: the sandbox has ended, or another server takes over."""
        self._quiet()
        if self._way_out is not None:
            self._way_out.close()  # first: the supervisor may be waiting for it
        # Otherwise the thread might use an fd number that has been reused.
        if self._lock is not None:
            self._lock.acquire()
        listener, self._listener = self._listener, -1
        if self._lock is not None:
            self._lock.release()
        if self._supervisor is not None:
            self._supervisor.close()
        elif listener >= 0:
            os.close(listener)
            if self._ledger >= 0:
                os.close(self._ledger)

    def disown(self) -> None:
        """Close our fd in a child after a fork; the parent goes on answering."""
        listener, self._listener = self._listener, -1
        if listener >= 0:
            os.close(listener)
        if self._way_out is not None:
            self._way_out.disown()

    def _quiet(self) -> None:
        loop = self._loop
        if loop is None or loop.is_closed() or self._supervisor is not None or self._listener < 0:
            return
        loop.remove_reader(self._listener)

    def _readable(self, keep: Keep | None) -> None:
        """Handle the first notification, or the end of all processes that could cause one."""
        events = _events(self._listener, 0)
        if events & _POLLIN:
            self._called(keep)
        elif events:
            self._quiet()

    def _called(self, keep: Keep | None) -> None:
        from handrail.sandbox.syscalls.pending_calls import PendingCalls
        from handrail.sandbox.syscalls.supervisor import Supervisor

        ledger = None
        try:
            if self._ledger >= 0:
                ledger = PendingCalls(self._ledger)
            elif keep is not None:
                ledger = PendingCalls.make()
                keep(ledger.fd)
        except OSError:
            if ledger is not None:
                ledger.close()
            self._quiet()
            assert self._loop is not None  # noqa: S101 (a keeper is asked on a loop only)
            self._loop.call_later(_BUSY_SECONDS, self._again, keep)
            return
        self._quiet()
        self._supervisor = Supervisor(
            self._listener, ledger or PendingCalls(), self._watcher, self._way_out
        )

    def _again(self, keep: Keep | None) -> None:
        if self._listener >= 0 and self._loop is not None:
            self._loop.add_reader(self._listener, self._readable, keep)

    def _wait(self, listener: int) -> None:
        called = _events(listener, None) & _POLLIN
        os.close(listener)
        assert self._lock is not None  # noqa: S101 (made before the thread)
        with self._lock:
            if called and self._listener >= 0:
                self._called(None)


def _events(listener: int, timeout: int | None) -> int:
    from select import poll  # once the command runs

    ready = poll()
    ready.register(listener, _POLLIN)
    return next((events for _, events in ready.poll(timeout)), 0)
