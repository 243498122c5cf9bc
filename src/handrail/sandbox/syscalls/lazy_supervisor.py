"""A listener, and whoever answers it once somebody calls.

Most commands never call, so the attendant and all it is made of are imported and started with the
first call.  On an event loop that is noticed there; a program that waits for nothing but its one
command leaves it to a thread.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from handrail.sandbox.denial import Denial
    from handrail.sandbox.syscalls.denial_recorder import DenialRecorder
    from handrail.sandbox.syscalls.supervisor import Supervisor

    #: Have the keeper hold a copy of a descriptor; raises OSError when it is too busy.
    Keep = Callable[[int], None]

#: How long until a keeper is asked again that was too busy.
_BUSY_SECONDS = 0.01


class LazySupervisor:
    """The calls of one sandbox; takes the descriptors."""

    __slots__ = ("_attendant", "_ledger", "_listener", "_lock", "_loop", "_watcher")

    def __init__(
        self, listener: int, watcher: DenialRecorder | None = None, ledger: int = -1
    ) -> None:
        self._listener = listener
        self._watcher = watcher
        self._ledger = ledger
        self._loop: AbstractEventLoop | None = None
        self._attendant: Supervisor | None = None
        self._lock: LockType | None = None

    def begin(self, loop: AbstractEventLoop, keep: Keep | None) -> None:
        """From now on calls are answered."""
        self._loop = loop
        if self._ledger >= 0:  # perhaps some have waited since a server before us died
            self._called(None)
        else:
            loop.add_reader(self._listener, self._called, keep)

    def begin_alone(self) -> None:
        """The same without an event loop."""
        import _thread  # threading itself is for those who are called

        self._lock = _thread.allocate_lock()
        # A copy of its own: everybody inside may be gone before it has begun.
        _thread.start_new_thread(self._wait, (os.dup(self._listener),))

    @property
    def holdings(self) -> tuple[int, int]:
        """The listener and the ledger, for another keeper; -1: none."""
        if self._listener < 0:
            return -1, -1
        ledger = self._ledger if self._attendant is None else self._attendant.ledger_fd
        return self._listener, ledger

    @property
    def denials(self) -> list[Denial]:
        """What is known to have been refused."""
        return [] if self._attendant is None else self._attendant.denials

    def close(self) -> None:
        """Everybody inside has ended, or somebody else goes on with it."""
        self._quiet()
        # Or else the thread might take up a number that is somebody else's by then.
        if self._lock is not None:
            self._lock.acquire()
        listener, self._listener = self._listener, -1
        if self._lock is not None:
            self._lock.release()
        if self._attendant is not None:
            self._attendant.close()
        elif listener >= 0:
            os.close(listener)
            if self._ledger >= 0:
                os.close(self._ledger)

    def disown(self) -> None:
        """In a child after a fork: somebody else answers, on a loop that is not ours."""
        listener, self._listener = self._listener, -1
        if listener >= 0:
            os.close(listener)

    def _quiet(self) -> None:
        loop = self._loop
        if loop is None or loop.is_closed() or self._attendant is not None or self._listener < 0:
            return
        loop.remove_reader(self._listener)

    def _called(self, keep: Keep | None) -> None:
        """The first call, or the end of all who could make one."""
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
        self._attendant = Supervisor(self._listener, ledger, self._watcher)

    def _again(self, keep: Keep | None) -> None:
        if self._listener >= 0 and self._loop is not None:
            self._loop.add_reader(self._listener, self._called, keep)

    def _wait(self, listener: int) -> None:
        from select import POLLIN, poll

        first = poll()
        first.register(listener, POLLIN)
        called = first.poll()[0][1] & POLLIN
        os.close(listener)
        assert self._lock is not None  # noqa: S101 (made before the thread)
        with self._lock:
            if called and self._listener >= 0:
                self._called(None)
