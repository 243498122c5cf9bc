"""The timeout of a keeper's child: it is asked to end, and killed when its grace is over.

The two other clocks are those of ``handrail run`` in the foreground, which has no keeper
(``process/foreground/run.py``), and of the caller, for executors that keep no timeouts
(``executor/caller_timeout.py``).

A server says when, with the start of a child that has a time limit or by DUE, and the keeper does
it: once and in time, whether or not a server is there by then.  A terminal hangs up, all processes
of the tree get TERM, then KILL.  Pure but for the clock that is handed in, in milliseconds.
"""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable

#: In a status, beside the kernel's bits: the time the child was given was over.
TIMED_OUT = 0x20000

#: Why a child is ended.
CAUSE_ASKED, CAUSE_TIME = b"asked", b"time"

#: A terminal hangs up this long before its processes are asked to end, within a quarter of
#: the grace.
_HANGUP = 200
#: How much of the grace descendants still get once their leader has used its own.
_STRAGGLERS = 1000
#: How soon one is looked for again whose sandbox is being set up.
_PAUSE = 20
#: So many that have been dropped may stay in the queue.
_SPARE = 64


class Deadline:
    """The next steps of the end of one child, and their reason."""

    __slots__ = ("at", "cause", "done", "grace", "steps")

    def __init__(
        self, cause: bytes, at: int, grace: int, steps: list[tuple[int, int]], done: int = -1
    ) -> None:
        self.cause = cause
        self.at = at
        self.grace = grace
        self.steps = steps  # when, and which signal; the last is KILL, and none is left after it
        self.done = done  # the time of the last step that was done, or -1

    @classmethod
    def plan(cls, cause: bytes, at: int, grace: int, *, terminal: bool) -> Deadline:
        """Plan an end at that time, with that grace."""
        steps = [(at, int(signal.SIGHUP))] if terminal else []
        asked = at + min(_HANGUP, grace // 4) if terminal else at
        steps += [(asked, int(signal.SIGTERM)), (at + grace, int(signal.SIGKILL))]
        return cls(cause, at, grace, steps)

    @property
    def begun(self) -> bool:
        return self.done >= 0

    @property
    def timed_out(self) -> bool:
        return self.begun and self.cause == CAUSE_TIME

    def sooner(self, at: int) -> None:
        """Have the KILL no later than that time."""
        if self.steps:
            steps = [step for step in self.steps[:-1] if step[0] < at]
            self.steps = [*steps, (min(at, self.steps[-1][0]), int(signal.SIGKILL))]

    def go_on(self, done: int) -> None:
        """Continue after the steps that another keeper has done up to that time."""
        self.done = done
        self.steps = [step for step in self.steps if step[0] > done]


class Deadlines:
    """The deadlines of all children, by the time of their next step."""

    def __init__(self, signal_tree: Callable[[bytes, int, int], bool]) -> None:
        #: Sends a signal to a child's tree, with the time that it is due; False when it did
        #: not reach a process that is still to come.
        self._signal = signal_tree
        self._of: dict[bytes, Deadline] = {}
        self.due: list[tuple[int, bytes]] = []

    def get(self, child: bytes) -> Deadline | None:
        return self._of.get(child)

    def set(self, child: bytes, ending: Deadline) -> None:
        """Replace the deadline of a child; an earlier KILL stays."""
        before = self._of.get(child)
        if before is not None and before.steps:
            ending.sooner(before.steps[-1][0])
        self._of[child] = ending
        self._await(child, ending)

    def drop(self, child: bytes) -> None:
        self._of.pop(child, None)
        # Most end long before their time: what is left of them must not pile up.
        if len(self.due) > 2 * len(self._of) + _SPARE:
            self.due = [(one.steps[0][0], key) for key, one in self._of.items() if one.steps]
            heapq.heapify(self.due)

    def overtaken(self, child: bytes) -> None:
        """Note that a child is killed for another reason."""
        ending = self._of.get(child)
        if ending is not None and not ending.begun:
            self.drop(child)

    def exited(self, child: bytes, now: int) -> int:
        """Note the exit of a leader; returns the flags for its status."""
        ending = self._of.get(child)
        if ending is None:
            return 0
        if not ending.begun:
            self.drop(child)
            return 0
        ending.sooner(now + _STRAGGLERS)
        self._await(child, ending)
        return TIMED_OUT if ending.timed_out else 0

    @property
    def next(self) -> int | None:
        """The time of the next step."""
        return self.due[0][0] if self.due else None

    def run(self, now: int) -> None:
        """Do every step that is due."""
        while self.due and self.due[0][0] <= now:
            _, child = heapq.heappop(self.due)
            ending = self._of.get(child)
            # Else it was changed since.
            if ending is not None and ending.steps and ending.steps[0][0] <= now:
                self._step(child, ending, now)

    def _step(self, child: bytes, ending: Deadline, now: int) -> None:
        at, number = ending.steps.pop(0)
        if self._signal(child, number, at):
            ending.done = at
        elif ending.steps and now + _PAUSE < ending.steps[0][0]:
            ending.steps.insert(0, (now + _PAUSE, number))
        self._await(child, ending)

    def _await(self, child: bytes, ending: Deadline) -> None:
        if ending.steps:
            heapq.heappush(self.due, (ending.steps[0][0], child))
