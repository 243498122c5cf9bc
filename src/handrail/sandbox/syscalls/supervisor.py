"""Who answers the calls that a contained command has announced.

One thread a sandbox, started when there is something to answer: most commands connect to nothing
and never have one.  ``connect`` is carried out (``connect.py``), and so are pairs of datagram
sockets (``socketpair.py``); where attempts are watched as well, the other calls are let go on at
once and then thought about (``denial_recorder.py``).  A connection
whose caller can wait has a thread of its own, so that it holds up nobody.

A signal interrupts a caller that waits, as ever.  What was begun for it goes on; should it come
back with the same socket, as the kernel has it do for most signals, it is told what became of
that, and nothing is begun twice.

The listener is also held by the keeper: while no server is there a call waits, as output does in a
full pipe.  What a server had taken and not answered when it died is in a ledger that the keeper
holds too (``pending_calls.py``), and the next server takes it up.
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

#: Different denials that are noted of one command.
MOST_RECORDS = 256
#: How often it is looked whether a signal waits for a caller that waits.
_SIGNAL_MS = 20
#: How often somebody who waits for a turn looks whether it still has to.
_LOOK_SECONDS = 0.2
#: How long the end of a sandbox waits for what was last seen in it.
_LAST_SECONDS = 1.0
#: What a second try is told of the first.
_DONE_BEFORE = {errno.EISCONN: 0, errno.EALREADY: errno.EINPROGRESS}
#: What an address outside gets where there is no way out.
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH)


class _Errand:
    """One connection under way, and who waits for it."""

    __slots__ = ("again", "call", "notice", "slot")

    def __init__(
        self, call: ConnectCall, notice: notify.Notification, slot: int, again: bool
    ) -> None:
        self.call = call
        self.notice = notice
        self.slot = slot
        self.again = again  # it may have been done already, by somebody who could not say so


class Supervisor:
    """Answers one listener until nobody is left who could call."""

    def __init__(
        self,
        listener: int,
        ledger: PendingCalls | None = None,
        watcher: DenialRecorder | None = None,
    ) -> None:
        """Takes the listener and the ledger."""
        self._listener = listener
        self._ledger = ledger
        self._watcher = watcher
        # Not the end of a pipe: a forked child would hold it open.
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._stopped = False
        self._found: dict[Denial, None] = {}
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(MOST_CALLS)
        #: Of the descriptors: our owner, our thread, and every errand with one.
        self._users = 2
        self._errands: dict[int, _Errand] = {}  # by socket
        #: By socket: what a caller was to be told when a signal interrupted it.
        self._undelivered: dict[int, int] = {}
        self._connect = seccomp_filter.connect_number(platform.machine())
        self._socketpair = seccomp_filter.socketpair_number(platform.machine())
        self._connections = ConnectCalls()
        self._pairs = SocketPairs()
        self._thread = threading.Thread(target=self._run, name="handrail-attendant", daemon=True)
        self._thread.start()

    @property
    def ledger_fd(self) -> int:
        """Of what is being answered; -1: nobody keeps it."""
        return -1 if self._ledger is None else self._ledger.fd

    @property
    def denials(self) -> list[Denial]:
        """What was noted so far."""
        return list(self._found)

    def close(self) -> None:
        """Stop, and wait until that has happened; who calls then waits for the next attendant."""
        if not self._stopped:
            self._stopped = True
            os.eventfd_write(self._stop, 1)
            self._thread.join(_LAST_SECONDS)
            self._let_go()

    # --- taking calls -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._ledger is not None:
                self._take_up(self._ledger)
            self._attend()
        finally:
            self._connections.close()
            self._pairs.close()
            self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            os.close(self._stop)
            os.close(self._listener)
            if self._ledger is not None:
                self._ledger.close()

    def _take_up(self, ledger: PendingCalls) -> None:
        """What an attendant before us has left unanswered."""
        for slot, notice in ledger.left():
            self._carry_out(notice, slot, again=True)
        lost = ledger.lost()
        if lost is not None and notify.still_waits(self._listener, lost):
            notify.answer(self._listener, lost, errno.ECONNABORTED)  # what it wanted is not known

    def _attend(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while True:
            events = dict(poll.poll(_SIGNAL_MS if self._errands else None))
            self._heed_signals()
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
                self._carry_out(notice, slot)
            elif self._watcher is None:
                notify.go_on(self._listener, notice)
            else:
                self._note(*self._watcher.see(self._listener, notice))

    # --- carrying them out ------------------------------------------------------------------

    def _carry_out(self, notice: notify.Notification, slot: int, *, again: bool = False) -> None:
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
        # Only now is it sure that all this was the caller's: its number may have become another's.
        if not notify.still_waits(self._listener, notice):
            self._strike(slot)
            call.close()
            return
        if self._comes_back(call, notice, slot):
            call.close()
            return
        errand = _Errand(call, notice, slot, again)
        if not call.waits:
            self._run_errand(errand)
            return
        while not self._turns.acquire(timeout=_LOOK_SECONDS):
            if self._stopped:
                call.close()
                return  # whoever follows us finds it in the ledger
        with self._lock:
            self._users += 1
            self._errands[call.identity] = errand
        threading.Thread(target=self._run_alone, args=(errand,), daemon=True).start()

    def _comes_back(self, call: ConnectCall, notice: notify.Notification, slot: int) -> bool:
        """Whether this is a caller that a signal has interrupted; it is told what became of it."""
        with self._lock:
            errand = self._errands.get(call.identity)
            if errand is not None:
                if notify.still_waits(self._listener, errand.notice):
                    return False  # somebody else, with the same socket
                self._strike(errand.slot)
                errand.notice, errand.slot = notice, slot
                return True
            error = self._undelivered.pop(call.identity, None)
        if error is None:
            return False
        self._answer(notice, slot, error)
        return True

    def _heed_signals(self) -> None:
        with self._lock:
            waiting = list(self._errands.values())
            for errand in waiting:
                if notify.has_signal(errand.notice.pid):
                    notify.answer(self._listener, errand.notice, notify.INTERRUPTED)

    def _run_alone(self, errand: _Errand) -> None:
        try:
            self._run_errand(errand)
        finally:
            self._turns.release()
            self._let_go()

    def _run_errand(self, errand: _Errand) -> None:
        error = errand.call.make()
        if errand.again:
            error = _DONE_BEFORE.get(error, error)
        identity = errand.call.identity
        with self._lock:
            if self._errands.get(identity) is errand:
                del self._errands[identity]
            if not self._answer(errand.notice, errand.slot, error):
                if error in (0, errno.EINPROGRESS):
                    self._undelivered[identity] = error
                    if len(self._undelivered) > MOST_CALLS:
                        del self._undelivered[next(iter(self._undelivered))]
                return
        if error in _NO_WAY and not shares_our_network(errand.notice.pid):
            text = mutating_calls.address_text(errand.call.address)
            if text is not None:
                self._note(Denial("network", "connect", text, "notify", certain=True))

    def _answer(self, notice: notify.Notification, slot: int, error: int) -> bool:
        """Whether the caller was there to hear it."""
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
