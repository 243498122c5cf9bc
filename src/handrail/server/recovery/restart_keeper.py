"""Starts a new keeper when the keeper dies and the server does not.

The children continue, and the server has their descriptors: output is read, exits are seen by
pidfd.  A new keeper is given copies of everything before it has even answered, so that a crash of
the server after that loses nothing either.  Restarts are limited in number.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

from handrail.errors import HandrailError
from handrail.process.child import Child
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import KeeperHandle
from handrail.process.recovery import release, start_note, tag_kill
from handrail.process.recovery.start_note import PORTER_NOTE
from handrail.server.sessions import Sessions

log = logging.getLogger(__name__)

#: At most so many new keepers in so many seconds.
BUDGET = 3
BUDGET_SECONDS = 60.0
#: How often a start is tried, and the delay between tries.
_TRIES = 10
_TRY_SECONDS = 0.5
#: The delay before a keeper with a full socket is given more.
_CROWD_SECONDS = 0.1


class KeeperRestart:
    """Starts the next keeper, within a budget."""

    def __init__(
        self,
        launcher: Launcher,
        sessions: Sessions,
        start: Callable[[], KeeperHandle],
        give_up: Callable[[], None],
        at_work: Callable[[int], None],
        porter: Callable[[], tuple[int, int, dict[bytes, int]] | None],
    ) -> None:
        """``porter``: number, pid and descriptors of the porter, if there is one."""
        self._porter = porter
        self._launcher = launcher
        self._sessions = sessions
        self._start = start
        self._give_up = give_up
        self._at_work = at_work
        self._starts: deque[float] = deque()
        self._dead: set[int] = set()  # tags of dead keepers
        self._task: asyncio.Task[None] | None = None

    def happened(self) -> None:
        """The keeper is gone: watch the children from here and start another."""
        now = time.monotonic()
        while self._starts and self._starts[0] < now - BUDGET_SECONDS:
            self._starts.popleft()
        if len(self._starts) >= BUDGET:
            log.error(
                "the keeper has died %d times in %.0f s; the server stops",
                BUDGET + 1,
                BUDGET_SECONDS,
            )
            self._give_up()
            return
        log.error("the keeper is gone; its children run on, and a new keeper is started")
        self._dead.add(self._launcher.mark)
        for child in self._sessions.children():
            release.watch(child)
        self._task = asyncio.get_running_loop().create_task(self._replace())

    async def _replace(self) -> None:
        try:
            handle = await self._next()
            if not handle.found:  # else the dying one still has its socket
                self._starts.append(time.monotonic())
            self._launcher.relink(handle)
            left = deque(self._sessions.everything())

            def give_at_once() -> None:
                # Before it has answered, or even begun: it reads this also if we are killed now.
                if not handle.found:
                    self._sessions.save_all()
                    self._give_porter()
                    self._give(left, wait=False)

            await self._launcher.hello(give_at_once)
            if handle.found:
                self._sessions.save_all()
                self._give_porter()
        except (OSError, HandrailError) as error:
            if self._task is not asyncio.current_task():
                return  # that keeper has died as well, and is being replaced
            log.error("no new keeper can be started (%s); the server stops", error)
            self._give_up()
            return
        self._at_work(self._launcher.mark)
        for _ in range(_TRIES):
            self._give(left, wait=True)
            if not left:
                break
            await asyncio.sleep(_CROWD_SECONDS)
        for _, _, child in left:
            log.error("process %r is lost with this server", child.key[:80])
        self._launcher.restored()
        # End what was started but not reported: its request was answered with an error.
        known = set(self._launcher.marks.values())
        dead = self._dead - {self._launcher.mark}  # a keeper that only hung up is alive
        await asyncio.to_thread(tag_kill.end_all_of, dead, known)

    def _give_porter(self) -> None:
        """Give the new keeper what we have of the porter."""
        held = self._porter()
        if held is not None:
            number, pid, fds = held
            with contextlib.suppress(OSError):  # then it is lost with this server
                self._launcher.adopt(number, pid, False, None, 0.0, PORTER_NOTE, fds)

    def _give(self, left: deque[tuple[str, bool, Child]], *, wait: bool) -> None:
        """Give the new keeper what we have of each child; with ``wait`` what its socket does not
        take now is sent later."""
        while left and (wait or not self._launcher.link.crowded):
            owner, detached, child = left[0]
            note = start_note.encode(owner, child.key, child.spec, child.started)
            held = release.holdings(child)
            end = None
            if child.ending.status is not None and child.exit is not None:
                end = (child.ending.status, child.exit.usage)
            sandboxed = child.spec.running_sandbox is not None
            started = child.started[1]
            try:
                self._launcher.adopt(child.number, child.pid, sandboxed, end, started, note, held)
            except OSError as error:  # too many descriptors are in flight, or none is free
                if wait:
                    log.error("process %r cannot be handed over yet: %s", child.key[:80], error)
                return
            left.popleft()
            if detached:
                self._launcher.renote(
                    child.number, start_note.move(owner, child.key, detached=True)
                )
            due = child.ending.due
            if due is not None and child.running:
                self._launcher.end_by(due, again=True)

    async def _next(self) -> KeeperHandle:
        """Start the next keeper; retried, for missing descriptors or memory may come back."""
        for _ in range(_TRIES):
            try:
                return self._start()
            except OSError as error:
                log.error("no new keeper can be started yet: %s", error)
                await asyncio.sleep(_TRY_SECONDS)
        return self._start()
