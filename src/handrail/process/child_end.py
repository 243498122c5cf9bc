"""The end of a child: asked to end, exited when its status is known, closed when its streams ended.

With grace a terminal hangs up, all processes of the tree get TERM, then KILL.  The keeper does it
(``keeper/timeout_and_grace.py``), so that it happens once and in time also when we are killed
meanwhile; here it is watched, and the grace is over early when no process is left that could use
it.

Whatever is in the pipes when the exit becomes known is numbered first; ``closed`` follows when
every stream has ended, in this order, however the news come in.  A descendant that holds a
stream open delays the close by ``DRAIN_SECONDS`` at most: then it is reported as held open, and
what comes later is thrown away.  Unless that is wanted too: a child that asked to lose nothing
(``on_lag``), or has a reader in this program, is closed by the end of its streams alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from handrail import fault_points, process
from handrail.errors import KeeperLost
from handrail.keeper import messages
from handrail.keeper.timeout_and_grace import CAUSE_ASKED, CAUSE_TIME
from handrail.process.exit_status import ExitInfo, ExitKind, Usage, exit_from_status
from handrail.process.output.event_index import EVICTED, LOST, TERMINATED
from handrail.process.recovery import release
from handrail.process.spec import Verdict

if TYPE_CHECKING:
    from handrail.process.child import Child

log = logging.getLogger(__name__)

#: How long streams may stay open after the exit before the process is closed without their end.
DRAIN_SECONDS = 2.0
#: How much of the grace descendants still get once their leader has used its own.
STRAGGLER_SECONDS = 1.0
#: First and longest pause between two looks whether descendants have ended.
_LOOK_SECONDS = 0.005
_LOOK_SECONDS_MOST = 0.1


class ChildEnd:
    """How one child ends, and why."""

    __slots__ = (
        "_child",
        "_discarded",
        "_task",
        "_timer",
        "asked",
        "cause",
        "closed_at",
        "ended_at",
        "exit",
        "held_open",
        "killed",
        "pidfd",
        "search",
        "status",
        "terminated",
        "verdict",
        "watched",
    )

    def __init__(self, child: Child, pidfd: int) -> None:
        self._child = child
        self.exit: ExitInfo | None = None
        self.verdict: Verdict | None = None  # of a sandboxed child that has exited
        self.status: int | None = None  # the exit as it was told, for the next keeper
        self.terminated = False
        self.killed = False  # by a server before us
        self.held_open = False  # closed although a descendant still has a stream
        self.cause: ExitKind | None = None  # why we end it, if no client asked us to
        self.asked: messages.Due | None = None  # the end that a client asked for
        self.closed_at = 0.0  # by the loop's clock
        self.ended_at: float | None = None  # monotonic; of one that ended before we were there
        self.pidfd = pidfd
        self.watched = False  # by its pidfd, without its keeper
        self.search: asyncio.Task[None] | None = None  # for its status, without its keeper
        self._task: asyncio.Task[None] | None = None  # ends it
        self._discarded = False
        self._timer: asyncio.TimerHandle | None = None

    # --- asked to end ----------------------------------------------------------------------

    @property
    def due(self) -> messages.Due | None:
        """When the child is to end, as far as that is known."""
        child = self._child
        if self.asked is not None or child.spec.timeout is None:
            return self.asked
        at = int((child.started[1] + child.spec.timeout) * 1000)
        grace = int(process.TIMEOUT_GRACE * 1000)
        return messages.Due(b"%d" % child.number, CAUSE_TIME, at, grace)

    def ask(self, seconds: float) -> None:
        """HUP for a terminal, TERM, and KILL after the grace, even without this server."""
        child = self._child
        log.info("process %r: asked to end, with %g s of grace", child.key[:80], seconds)
        now, grace = int(time.monotonic() * 1000), int(seconds * 1000)
        self.asked = messages.Due(b"%d" % child.number, CAUSE_ASKED, now, grace)
        child.launcher.end_by(self.asked)
        if self.exit is None:
            self.note_terminated()

    async def see_out(self, seconds: float) -> None:
        """Return when all processes of the tree have ended or the grace is over."""
        child, loop = self._child, self._child.loop
        deadline = loop.time() + seconds
        while child.running and (left := deadline - loop.time()) > 0:
            await child.changed(left)
        deadline = min(deadline, loop.time() + STRAGGLER_SECONDS)
        pause = _LOOK_SECONDS
        while (left := deadline - loop.time()) > 0:
            if child.number not in await child.launcher.orphans():
                break
            await asyncio.sleep(min(left, pause))
            pause = min(2 * pause, _LOOK_SECONDS_MOST)
        # The keeper's KILL, at the same time, may have been quicker than our clock.
        if self.exit is None or self.exit.signal == "SIGKILL":
            log.info("process %r: did not end within its grace, killed", child.key[:80])

    def kill(self) -> Coroutine[Any, Any, None]:
        """SIGKILL to every descendant; it is sent now, and its answer awaited by the coroutine."""
        child, answer = self._child, None
        if not child.launcher.link.bereft:
            self.terminated |= child.running  # the keeper tells the next server
            answer = child.launcher.signal(child.number, signal.SIGKILL, messages.SCOPE_TREE)
        return self._kill(answer)

    async def _kill(self, answer: asyncio.Future[messages.Message] | None) -> None:
        child, link = self._child, self._child.launcher.link
        try:
            if answer is not None:
                await answer
                return
        except KeeperLost:
            if not link.bereft:
                raise
        if child.running:
            self.note_terminated()
        release.kill(child)

    def kill_leader(self) -> None:
        """SIGKILL to the leader and its group from here, because there is no keeper."""
        if self.pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
                os.killpg(self._child.pid, signal.SIGKILL)  # its pid is not reused yet

    def end_soon(self, seconds: float) -> None:
        """End it in the background."""
        self._task = self._child.loop.create_task(self._end_quietly(seconds))

    async def _end_quietly(self, seconds: float) -> None:
        with contextlib.suppress(KeeperLost):  # then its exit is reported as lost
            await self._child.end(seconds)

    def evict(self) -> None:
        """End a child that has written more than it may."""
        if self.exit is None and self.cause is None:
            self.cause = ExitKind.LIMIT_EXCEEDED
            self._child.output.mark(EVICTED)
            self.end_soon(0.0)

    def note_terminated(self) -> None:
        """Record for the next server that the child was asked to end."""
        self.terminated = True
        self._child.output.mark(TERMINATED)

    def go_on(self) -> None:
        """Continue an end that a previous server had begun and perhaps not finished."""
        if self.cause is not None or (self.terminated and self.asked is None):
            # How much grace it had is known only of one that was to be killed at once.
            at_once = self.killed or self.cause is not None
            self.end_soon(0.0 if at_once else process.TIMEOUT_GRACE)

    # --- exited ------------------------------------------------------------------------------

    def exited(self, status: int, *used: int) -> None:
        """Record the exit of the leader; ``used`` is empty where that was not counted."""
        sandbox = self._child.spec.running_sandbox
        if sandbox is None:
            self._reaped(status, *used)
        else:  # the end of a sandbox is the end of all processes in it
            sandbox.settle(self._child.loop, lambda: self._reaped(status, *used))

    def _reaped(
        self,
        status: int,
        user_ms: int | None = None,
        system_ms: int | None = None,
        rss: int | None = None,
    ) -> None:
        if not self._discarded:
            usage = Usage(int(self._child.age * 1000), user_ms, system_ms, rss)
            self._child.output.take_last()
            self._note_exit(self.read_status(status, usage), status)

    def read_status(self, status: int, usage: Usage) -> ExitInfo:
        """Turn a wait status into the exit of this child."""
        return exit_from_status(
            status,
            terminated=self.terminated,
            usage=usage,
            cause=self.cause,
            sandboxed=self._child.spec.sandboxed,
            limits=self._child.spec.limits,
        )

    def exit_unknown(self) -> None:
        """Record an exit whose status cannot be learned any more as not known."""
        if self.exit is None:
            sandbox = self._child.spec.running_sandbox
            if sandbox is not None:
                sandbox.settle(self._child.loop, _nothing)
            self._note_exit(ExitInfo(ExitKind.LOST, None), LOST)

    def _note_exit(self, info: ExitInfo, status: int) -> None:
        """Number the exit, record it for the next server, tell the sink."""
        child, output = self._child, self._child.output
        self.exit, self.status = info, status
        if child.spec.judge is not None:
            sandbox, network = child.spec.running_sandbox, child.spec.network
            seen = [
                *(() if sandbox is None else sandbox.denials),
                *(() if network is None else network.denials),
            ]
            self.verdict = child.spec.judge(info.code, output.texts() if info.code else [], seen)
        if child.spec.network is not None and child.spec.running_sandbox is not None:
            child.spec.network.ended()  # nothing of it is left
        if self._timer is not None:
            self._stop_timer()
        child.stdin.exited(terminated=self.terminated)
        seq = output.exited(status, int(child.age * 1000))
        if fault_points.armed:
            fault_points.point("exit.numbered")
        try:
            if child.sink is not None and not output.is_behind:
                child.sink.exited(child, seq)
            self.maybe_closed()  # first, so that a close is sent together with these
            child.wake()
            child.told_exit()
            self.drain_later()
        finally:
            self.close_pidfd()  # after the news, which a client may be waiting for

    # --- closed ------------------------------------------------------------------------------

    def drain_later(self) -> None:
        """Give the streams of an exited child time to end."""
        child, output = self._child, self._child.output
        closed = output.log.closed_seq is not None
        if not closed and not output.waits and not child.spec.waits_for_streams:
            self._timer = child.loop.call_later(DRAIN_SECONDS, self._drained)

    def _drained(self) -> None:
        """Close without the end of the streams: their time is over."""
        child = self._child
        taken = child.output.take_rest()
        if child.closed:
            return
        if taken:
            self.held_open = not child.output.ended
            self._close()
        else:
            self._timer = child.loop.call_later(DRAIN_SECONDS, self._drained)

    def maybe_closed(self) -> None:
        """Close if the exit is known and this stream was the last to end."""
        child, output = self._child, self._child.output
        if self.exit is None or not output.ended:
            return
        if output.log.closed_seq is None:
            self._close()
        elif self.held_open:
            child.launcher.release(child.number)  # the last descendant has closed the streams

    def _close(self) -> None:
        child, output = self._child, self._child.output
        if self._timer is not None:
            self._stop_timer()
        seq = output.close(held_open=self.held_open)
        self.closed_at = child.loop.time()
        if fault_points.armed:
            fault_points.point("close.numbered")
        child.stdin.close()
        if child.sink is not None and not output.is_behind:
            child.sink.closed(child, seq)
        if not self.held_open:
            child.launcher.release(child.number)
        if child.spec.network is not None:
            child.spec.network.ended()
        child.wake()
        child.told_exit()
        child.shrink()
        child.told_closed()

    def discard(self) -> None:
        """Ignore everything that still comes: the child is not wanted any more."""
        self._discarded = True
        sandbox = self._child.spec.running_sandbox
        if self.exit is None and sandbox is not None:
            sandbox.settle(self._child.loop, _nothing)
        if self._child.spec.network is not None:
            self._child.spec.network.ended()
        self.park()
        self.close_pidfd()

    def park(self) -> None:
        """Stop all timers and watchers."""
        self._stop_timer()
        for task in (self._task, self.search):
            if task is not None:
                task.cancel()

    def close_pidfd(self) -> None:
        """Close the pidfd: its process has ended."""
        if self.pidfd >= 0:
            if self.watched:
                self._child.loop.remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing() -> None:
    """Do nothing: the end of the sandbox is not waited for."""
