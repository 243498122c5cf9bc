"""The supervisor thread: answers the seccomp notifications of one sandbox.

It starts with the first notification; most commands connect to nothing and never have one.  It
makes ``connect`` calls (``connect.py``) and datagram socket pairs (``socketpair.py``) itself.  If
attempts are recorded, it lets other calls go on at once and judges them afterwards
(``denial_recorder.py``).  A ``connect`` that may block runs in a thread of its own; one to the
proxy of a managed network does not block.

A signal interrupts a waiting caller as usual, while the connection attempt goes on.  If the caller
retries with the same socket, as the kernel makes it do for most signals, it gets the result of that
attempt, and none is made twice.

The keeper holds the listener too: without a server a call waits, like output in a full pipe.  Calls
that a server had taken and not answered when it died are in a ledger that the keeper holds as well
(``pending_calls.py``); the next server answers them.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import select
import threading
from functools import partial
from time import monotonic

from handrail import fault_points
from handrail.network.managed.way_out import WayOut
from handrail.sandbox.denial import Denial, Host, again
from handrail.sandbox.syscalls import mutating_calls, notify, seccomp_filter
from handrail.sandbox.syscalls.call_threads import CallThreads
from handrail.sandbox.syscalls.connect import ConnectCall, ConnectCalls, shares_our_network
from handrail.sandbox.syscalls.denial_recorder import DenialRecorder
from handrail.sandbox.syscalls.pending_calls import MOST_CALLS, PendingCalls
from handrail.sandbox.syscalls.socketpair import give_pair

log = logging.getLogger(__name__)

#: Limit of distinct denials recorded for one command.
MOST_RECORDS = 256
#: Interval for checking whether a waiting caller has a pending signal.
_SIGNAL_SECONDS = 0.02
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
        ledger: PendingCalls,
        watcher: DenialRecorder | None = None,
        way_out: WayOut | None = None,
    ) -> None:
        """Owns the listener and the ledger."""
        self._way_out = way_out
        self._listener = listener
        self._ledger = ledger
        self._watcher = watcher
        # Not a pipe: a forked child would keep its write end open.
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._stopped = False
        self._found: dict[tuple[str | None, ...], Denial] = {}
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
        self._threads = CallThreads()
        self._thread = threading.Thread(target=self._run, name="handrail-supervisor", daemon=True)
        self._thread.start()

    @property
    def ledger_fd(self) -> int:
        """The fd of the ledger; -1: it is not shared."""
        return self._ledger.fd

    @property
    def denials(self) -> list[Denial]:
        """The denials recorded so far."""
        return list(self._found.values())

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
            for slot, notice in self._ledger.left():  # that a previous supervisor has left
                self._answer_call(slot, notice, again=True)
            self._serve()
        finally:
            self._connections.close()
            self._threads.close()
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self._stop)
            os.close(self._listener)
            self._ledger.close()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        looked = 0.0
        while True:
            events = dict(poll.poll(_SIGNAL_SECONDS * 1000 if self._attempts else None))
            if self._attempts and monotonic() >= looked + _SIGNAL_SECONDS:
                self._interrupt_callers()
                looked = monotonic()
            if not events:
                continue
            if self._stop in events or not events.get(self._listener, 0) & select.POLLIN:
                return
            taken = self._ledger.take(self._listener)
            if taken is None:
                continue
            if fault_points.armed:
                fault_points.point("call.taken")
            self._answer_call(*taken)

    def _answer_call(self, slot: int, notice: notify.Notification, *, again: bool = False) -> None:
        """Carry out a call, or let it go on; ``again``: a previous supervisor may have done so."""
        if notice.call in (self._connect, self._socketpair):
            self._execute(notice, slot, again=again)
            return
        if self._watcher is None:
            notify.go_on(self._listener, notice)
        else:
            self._note(*self._watcher.see(self._listener, notice))
        self._ledger.strike(slot)

    # --- carrying them out ------------------------------------------------------------------

    def _execute(self, notice: notify.Notification, slot: int, *, again: bool) -> None:
        if not notify.still_waits(self._listener, notice):
            self._ledger.strike(slot)
            return
        if notice.call == self._socketpair:
            self._answer(notice, slot, give_pair(self._listener, notice))
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
            self._ledger.strike(slot)
            call.close()
            return
        if self._is_retry(call, notice, slot):
            call.close()
            return
        if self._way_out is not None:
            if self._way_out.is_wanted(call.address):
                self._open_way(self._way_out, notice)
            call.address = self._way_out.led(call.address)
        attempt = _Attempt(call, notice, slot, again)
        if not call.waits or (
            self._way_out is not None and self._way_out.answers_at_once(call.address)
        ):
            self._run_attempt(attempt)
            return
        while not self._turns.acquire(timeout=_LOOK_SECONDS):
            if self._stopped:
                call.close()
                return  # the next supervisor finds it in the ledger
        with self._lock:
            self._users += 1
            self._attempts[call.identity] = attempt
        self._threads.run(partial(self._run_alone, attempt))

    def _open_way(self, way_out: WayOut, notice: notify.Notification) -> None:
        """Have the proxy listen before this call is made; without it the call is refused."""
        try:
            way_out.open(notice.pid, lambda: notify.still_waits(self._listener, notice))
        except OSError as error:
            log.error("a managed network cannot be opened: %s", error)

    def _is_retry(self, call: ConnectCall, notice: notify.Notification, slot: int) -> bool:
        """Whether a caller retries after a signal; it gets the result of the first attempt."""
        with self._lock:
            attempt = self._attempts.get(call.identity)
            if attempt is not None:
                if notify.still_waits(self._listener, attempt.notice):
                    return False  # another caller, with the same socket
                self._ledger.strike(attempt.slot)
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
        # Before the answer, after which the command may end and be asked what it was refused.
        # The machine's own name server (127.0.0.53, say) is not in the sandbox's network either: a
        # datagram socket is connected to its address nevertheless.
        address, offline = attempt.call.address, self._way_out is None
        lost = error in _NO_WAY or (offline and mutating_calls.is_name_server(address))
        if lost and not shares_our_network(attempt.notice.pid):
            self._note_unreached(address, attempt.notice.pid)
        with self._lock:
            if self._attempts.get(identity) is attempt:
                del self._attempts[identity]
            heard = self._answer(attempt.notice, attempt.slot, error)
            if not heard and error in (0, errno.EINPROGRESS):
                self._undelivered[identity] = error
                if len(self._undelivered) > MOST_CALLS:
                    del self._undelivered[next(iter(self._undelivered))]

    def _answer(self, notice: notify.Notification, slot: int, error: int) -> bool:
        """Answer the caller; False if it has gone."""
        if fault_points.armed:
            fault_points.point("call.made")
        heard = notify.answer(self._listener, notice, error)
        if fault_points.armed:
            fault_points.point("call.answered")
        self._ledger.strike(slot)
        return heard

    def _note_unreached(self, address: bytes, pid: int) -> None:
        """Record the target of a ``connect`` for which this sandbox has no way."""
        text = mutating_calls.address_text(address, own_network=self._way_out is None)
        if text is None:
            return
        host, _, port = text.rpartition(":")
        where = Host(host.strip("[]"), int(port), pid=pid, comm=_comm(pid))
        self._note(Denial("network", "connect", text, "notify", certain=True, host=where))

    def _note(self, *found: Denial) -> None:
        for denial in found:
            key = (denial.kind, denial.op, denial.path, denial.source)
            known = self._found.get(key)
            if known is not None:
                self._found[key] = again(known)
            elif len(self._found) < MOST_RECORDS:
                self._found[key] = denial


def _comm(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().strip().decode("utf-8", "replace")
    except OSError:
        return None
