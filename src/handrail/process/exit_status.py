"""How a process ended: its kind of end, exit code, signal and usage, from the status of wait4."""

from __future__ import annotations

import enum
import os
import signal
from dataclasses import dataclass, field

from handrail.keeper.cgroups import OUT_OF_MEMORY
from handrail.keeper.deadlines import TIMED_OUT
from handrail.keeper.watcher import TOO_MANY

_SIGNALS = frozenset(map(int, signal.valid_signals()))


class ExitKind(enum.Enum):
    """How a process came to its end.  ``LOST`` is an answer; an invented 0 is not."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TERMINATED = "terminated"
    TIMED_OUT = "timedOut"
    OUT_OF_MEMORY = "outOfMemory"
    EVICTED = "evicted"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has cost, as the kernel counted it when it was reaped.

    None is not known: the keeper, whose child it was, had been killed.
    """

    wall_ms: int
    user_ms: int | None
    system_ms: int | None
    max_rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a process ended; ``code`` is what a shell would show."""

    kind: ExitKind
    code: int | None
    signal: str | None = None
    core_dumped: bool = False
    usage: Usage | None = None
    #: The limit it was ended for, where neither kind nor signal says it.
    exceeded: str | None = field(default=None, repr=False)

    @property
    def limit(self) -> str | None:
        """Which of the ``Limits`` has ended it; None: none, as far as that is known."""
        if self.exceeded is not None:
            return self.exceeded
        if self.signal in _BY_SIGNAL and self.kind is ExitKind.SIGNALED:
            return _BY_SIGNAL[self.signal]
        return _BY_KIND.get(self.kind)


_BY_KIND = {ExitKind.OUT_OF_MEMORY: "memory", ExitKind.EVICTED: "output"}
#: The kernel sends these for nothing else.
_BY_SIGNAL = {"SIGXCPU": "cpu_seconds", "SIGXFSZ": "file_size"}


def exit_from_status(
    status: int,
    *,
    terminated: bool,
    usage: Usage | None = None,
    cause: ExitKind | None = None,
    sandboxed: bool = False,
) -> ExitInfo:
    """Read a wait status.  Killed by signal N is 128+N, in a terminal as on pipes.

    ``cause`` is why we ended it, if it was not on request.  ``sandboxed``: what holds a command
    in a sandbox exits with 128+N for a command that was killed by N, so that is read back.
    """
    starved, late, crowded = (status & bit for bit in (OUT_OF_MEMORY, TIMED_OUT, TOO_MANY))
    status &= 0xFFFF
    exceeded = None
    if sandboxed and os.WIFEXITED(status) and os.WEXITSTATUS(status) - 128 in _SIGNALS:
        status = os.WEXITSTATUS(status) - 128
    if cause is None and late:
        cause = ExitKind.TIMED_OUT
    elif cause is None and terminated:
        cause = ExitKind.TERMINATED
    elif cause is None and starved and status:
        cause = ExitKind.OUT_OF_MEMORY
    elif cause is None and crowded and status:
        cause, exceeded = ExitKind.EVICTED, "processes"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ExitInfo(
            cause or ExitKind.SIGNALED,
            128 + number,
            _signal_name(number),
            os.WCOREDUMP(status),
            usage,
            exceeded,
        )
    return ExitInfo(
        cause or ExitKind.EXITED, os.WEXITSTATUS(status), usage=usage, exceeded=exceeded
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
