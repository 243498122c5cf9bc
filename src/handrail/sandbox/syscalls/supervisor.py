"""The supervisor thread: answers the seccomp notifications of one sandbox.

It starts with the first notification; most commands connect to nothing and never have one.  It
makes ``connect`` calls (``connect.py``) and datagram socket pairs (``socketpair.py``) itself.  If
attempts are recorded, it lets other calls go on at once and judges them afterwards
(``denial_recorder.py``).  A ``connect`` that may block runs in a thread of its own.

A signal interrupts a waiting caller as usual, while the connection attempt goes on.  If the caller
retries with the same socket, as the kernel makes it do for most signals, it gets the result of that
attempt, and none is made twice.

The keeper holds the listener too: without a server a call waits, like output in a full pipe.  Calls
that a server had taken and not answered when it died are in a ledger that the keeper holds as well
(``pending_calls.py``); the next server answers them.
"""

from __future__ import annotations

import errno
import os
import platform
import select
import threading

from handrail import fault_points
from handrail.sandbox.denial import Denial
from handrail.sandbox.syscalls import mutating_calls, notify, seccomp_filter
from handrail.sandbox.syscalls.connect import ConnectCall, ConnectCalls, shares_our_network
from handrail.sandbox.syscalls.denial_recorder import DenialRecorder
from handrail.sandbox.syscalls.pending_calls import MOST_CALLS, PendingCalls
from handrail.sandbox.syscalls.socketpair import SocketPairs

#: Limit of distinct denials recorded for one command.
MOST_RECORDS = 256
#: Interval for checking whether a waiting caller has a pending signal.
_SIGNAL_MS = 20
#: Interval at which a call that waits for its turn checks whether we are being stopped.
_LOOK_SECONDS = 0.2
#: How long the end of a sandbox waits for its last notifications.
_LAST_SECONDS = 1.0
#: Result of a repeated ``connect`` -> the result of the first one.
_DONE_BEFORE = {errno.EISCONN: 0, errno.EALREADY: errno.EINPROGRESS}
#: What ``connect`` returns for outside addresses if there is no network.
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH)


class _Attempt:
    """One ``connect`` in progress, and the notification that waits for it."""

    __slots__ = ("again", "call", "notice", "slot")

    def __init__(
        self, call: ConnectCall, notice: notify.Notification, slot: int, again: bool
    ) -> None:
        self.call = call
        self.notice = notice
        self.slot = slot
        self.again = again  # a previous server may have done it without answering


class Supervisor:
    """Answers one listener until no process is left that could make a call."""

    def __init__(
        self,
        listener: int,
        ledger: PendingCalls | None = None,
        watcher: DenialRecorder | None = None,
    ) -> None:
        """Owns the listener and the ledger."""
        self._listener = listener
        self._ledger = ledger
        self._watcher = watcher
        # Not a pipe: a forked child would keep its write end open.
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._stopped = False
        self._found: dict[Denial, None] = {}
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(MOST_CALLS)
        #: Users of the fds: our owner, our thread, and each call with a thread of its own.
        self._users = 2
        self._attempts: dict[int, _Attempt] = {}  # by socket inode
        #: By socket inode: the result for a caller that a signal has interrupted.
        self._undelivered: dict[int, int] = {}
        self._connect = seccomp_filter.connect_number(platform.machine())
        self._socketpair = seccomp_filter.socketpair_number(platform.machine())
        self._connections = ConnectCalls()
        self._pairs = SocketPairs()
        self._thread = threading.Thread(target=self._run, name="handrail-supervisor", daemon=True)
        self._thread.start()

    @property
    def ledger_fd(self) -> int:
        """The fd of the ledger; -1: none."""
        return -1 if self._ledger is None else self._ledger.fd

    @property
    def denials(self) -> list[Denial]:
        """What was recorded so far."""
        return list(self._found)

    def close(self) -> None:
        """Stop the thread and wait for it; later calls wait for the next supervisor."""
        if not self._stopped:
            self._stopped = True
            os.eventfd_write(self._stop, 1)
            self._thread.join(_LAST_SECONDS)
            self._release()

    # --- taking calls -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._ledger is not None:
                self._answer_pending(self._ledger)
            self._serve()
        finally:
            self._connections.close()
            self._pairs.close()
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self._stop)
            os.close(self._listener)
            if self._ledger is not None:
                self._ledger.close()

    def _answer_pending(self, ledger: PendingCalls) -> None:
        """Answer what a previous supervisor has left unanswered."""
        for slot, notice in ledger.left():
            self._execute(notice, slot, again=True)
        lost = ledger.lost()
        if lost is not None and notify.still_waits(self._listener, lost):
            notify.answer(self._listener, lost, errno.ECONNABORTED)  # its arguments are lost

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while True:
            events = dict(poll.poll(_SIGNAL_MS if self._attempts else None))
            self._interrupt_callers()
            if not events:
                continue
            if self._stop in events or not events.get(self._listener, 0) & select.POLLIN:
                return
            notice = notify.receive(self._listener)
            if notice is None:
                continue
            if fault_points.armed:
                fault_points.point("call.taken")
            if notice.call in (self._connect, self._socketpair):
                slot = -1 if self._ledger is None else self._ledger.enter(notice)
                self._execute(notice, slot)
            elif self._watcher is None:
                notify.go_on(self._listener, notice)
            else:
                self._note(*self._watcher.see(self._listener, notice))

    # --- carrying them out ------------------------------------------------------------------

    def _execute(self, notice: notify.Notification, slot: int, *, again: bool = False) -> None:
        if fault_points.armed:
            fault_points.point("call.entered")
        if not notify.still_waits(self._listener, notice):
            self._strike(slot)
            return
        if notice.call == self._socketpair:
            self._answer(notice, slot, self._pairs.make(self._listener, notice))
            return
        try:
            call = self._connections.prepare(notice)
        except OSError as error:
            if isinstance(error, PermissionError) and isinstance(error.filename, bytes):
                path = error.filename.decode("utf-8", "replace")
                self._note(Denial("network", "connect", path, "notify", certain=True))
            self._answer(notice, slot, error.errno or errno.EINVAL)
            return
        # Only now it is certain that the data was the caller's: its pid may have been reused.
        if not notify.still_waits(self._listener, notice):
            self._strike(slot)
            call.close()
            return
        if self._is_retry(call, notice, slot):
            call.close()
            return
        attempt = _Attempt(call, notice, slot, again)
        if not call.waits:
            self._run_attempt(attempt)
            return
        while not self._turns.acquire(timeout=_LOOK_SECONDS):
            if self._stopped:
                call.close()
                return  # the next supervisor finds it in the ledger
        with self._lock:
            self._users += 1
            self._attempts[call.identity] = attempt
        threading.Thread(target=self._run_alone, args=(attempt,), daemon=True).start()

    def _is_retry(self, call: ConnectCall, notice: notify.Notification, slot: int) -> bool:
        """Whether a caller retries after a signal; it gets the result of the first attempt."""
        with self._lock:
            attempt = self._attempts.get(call.identity)
            if attempt is not None:
                if notify.still_waits(self._listener, attempt.notice):
                    return False  # another caller, with the same socket
                self._strike(attempt.slot)
                attempt.notice, attempt.slot = notice, slot
                return True
            error = self._undelivered.pop(call.identity, None)
        if error is None:
            return False
        self._answer(notice, slot, error)
        return True

    def _interrupt_callers(self) -> None:
        with self._lock:
            waiting = list(self._attempts.values())
            for attempt in waiting:
                if notify.has_signal(attempt.notice.pid):
                    notify.answer(self._listener, attempt.notice, notify.INTERRUPTED)

    def _run_alone(self, attempt: _Attempt) -> None:
        try:
            self._run_attempt(attempt)
        finally:
            self._turns.release()
            self._release()

    def _run_attempt(self, attempt: _Attempt) -> None:
        error = attempt.call.make()
        if attempt.again:
            error = _DONE_BEFORE.get(error, error)
        identity = attempt.call.identity
        with self._lock:
            if self._attempts.get(identity) is attempt:
                del self._attempts[identity]
            if not self._answer(attempt.notice, attempt.slot, error):
                if error in (0, errno.EINPROGRESS):
                    self._undelivered[identity] = error
                    if len(self._undelivered) > MOST_CALLS:
                        del self._undelivered[next(iter(self._undelivered))]
                return
        if error in _NO_WAY and not shares_our_network(attempt.notice.pid):
            text = mutating_calls.address_text(attempt.call.address)
            if text is not None:
                self._note(Denial("network", "connect", text, "notify", certain=True))

    def _answer(self, notice: notify.Notification, slot: int, error: int) -> bool:
        """Answer the caller; False if it has gone."""
        if fault_points.armed:
            fault_points.point("call.made")
        heard = notify.answer(self._listener, notice, error)
        if fault_points.armed:
            fault_points.point("call.answered")
        self._strike(slot)
        return heard

    def _strike(self, slot: int) -> None:
        if slot >= 0 and self._ledger is not None:
            self._ledger.strike(slot)

    def _note(self, *found: Denial) -> None:
        for denial in found:
            if len(self._found) < MOST_RECORDS:
                self._found.setdefault(denial)
