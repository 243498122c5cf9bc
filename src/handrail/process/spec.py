"""What to start, and how it ended.  Pure data."""

from __future__ import annotations

import enum
import os
import signal
from dataclasses import dataclass, field, replace

DEFAULT_ROWS = 24
DEFAULT_COLS = 80


class OnLag(enum.Enum):
    """What becomes of output that its reader does not take."""

    BLOCK = "block"  # the child waits, also while nobody is attached
    DROP = "drop"  # the child goes on, and the gap is announced


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One command, complete: nothing is taken from the server's own environment any more."""

    argv: tuple[bytes, ...]
    cwd: bytes
    env: dict[bytes, bytes] = field(repr=False)
    tty: bool = False
    pipe_stdin: bool = False
    arg0: bytes | None = None
    rows: int = DEFAULT_ROWS
    cols: int = DEFAULT_COLS
    name: str | None = None
    #: (number in the child, descriptor here); the descriptors stay the caller's.
    passed: tuple[tuple[int, int], ...] = ()
    #: None: wait for a reader who is attached, drop beyond the retention without one.
    on_lag: OnLag | None = None

    def without_env(self) -> ProcessSpec:
        """The same for somebody who only wants to know what it was: small, and no secrets."""
        return replace(self, env=_NO_ENV)


_NO_ENV: dict[bytes, bytes] = {}


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
    """What a process has cost, as the kernel counted it when it was reaped."""

    wall_ms: int
    user_ms: int
    system_ms: int
    max_rss_bytes: int


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """The whole truth about an exit; ``code`` is what a shell would show."""

    kind: ExitKind
    code: int | None
    signal: str | None = None
    core_dumped: bool = False
    usage: Usage | None = None


def exit_from_status(status: int, *, terminated: bool, usage: Usage | None = None) -> ExitInfo:
    """Read a wait status.  Killed by signal N is 128+N, in a terminal as on pipes."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ExitInfo(
            ExitKind.TERMINATED if terminated else ExitKind.SIGNALED,
            128 + number,
            _signal_name(number),
            os.WCOREDUMP(status),
            usage,
        )
    kind = ExitKind.TERMINATED if terminated else ExitKind.EXITED
    return ExitInfo(kind, os.WEXITSTATUS(status), usage=usage)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


_NUMBERS = {s.name.removeprefix("SIG").lower(): int(s) for s in signal.Signals}


def signal_number(name: str) -> int | None:
    """``interrupt`` of the wire, or any signal by its lower-case name (``term``, ``sigterm``)."""
    if name == "interrupt":
        return int(signal.SIGINT)
    return _NUMBERS.get(name.removeprefix("sig"))
