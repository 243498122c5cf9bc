"""When a call returns.  Pure: the clock is an argument, in seconds.

A call collects until its deadline, or until the process has exited *and* its output is closed.
A descendant may hold the output open; for that a call waits a moment only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: How long output may stay open after the exit before a call returns without its end.
CLOSE_WAIT = 0.05


@dataclass(slots=True)
class Pauses:
    """The time that questions about one process took; it does not count against its calls."""

    _before: float = 0.0
    _since: float = 0.0
    _open: int = 0

    @property
    def active(self) -> bool:
        return self._open > 0

    def begin(self, now: float) -> None:
        if not self._open:
            self._since = now
        self._open += 1

    def end(self, now: float) -> None:
        self._open -= 1
        if not self._open:
            self._before += now - self._since

    def total(self, now: float) -> float:
        """Seconds of pause so far."""
        return self._before + (now - self._since if self._open else 0.0)


@dataclass(slots=True)
class Collection:
    """One call's wait: call ``next_wait`` after all available output was taken."""

    deadline: float
    pauses: Pauses = field(default_factory=Pauses)
    close_wait: float = CLOSE_WAIT
    _paused_before: float = field(init=False, default=0.0)
    _close_deadline: float | None = field(init=False, default=None)
    #: Output was still open when the call returned after an exit.
    left_open: bool = field(init=False, default=False)

    def begin(self, now: float) -> None:
        """Start: pauses before this moment do not count."""
        self._paused_before = self.pauses.total(now)

    def next_wait(self, now: float, *, took: bool, exited: bool, closed: bool) -> float | None:
        """Seconds to wait for new output (0: look again at once); None: return.

        ``took`` says that there was output since the last look.
        """
        if exited and closed and not took:
            return None
        if self.pauses.active:
            return 0.0 if took else float("inf")
        moved = self.pauses.total(now) - self._paused_before
        remaining = self.deadline + moved - now
        if took:
            return None if remaining <= 0 else 0.0
        if remaining <= 0:
            self.left_open = exited
            return None
        if not exited:
            return remaining
        if self._close_deadline is None:
            self._close_deadline = now + min(remaining, self.close_wait) - moved
        left = self._close_deadline + moved - now
        if left <= 0:
            self.left_open = True
            return None
        return left
