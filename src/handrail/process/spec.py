"""What to start, and how it ended.  Pure data."""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

DEFAULT_ROWS = 24
DEFAULT_COLS = 80


class Containment(Protocol):
    """What is around a command that runs in a sandbox."""

    def sent(self) -> None:
        """The keeper has been given its own copies of the descriptors that are passed."""

    @property
    def again(self) -> Callable[[], ProcessSpec] | None:
        """Makes another of the same, for one that could not be set up."""

    async def set_up(self, loop: AbstractEventLoop) -> bool:
        """Wait until the command is about to start; False when it will not."""

    def abandon(self) -> None:
        """The command was not started."""

    def settle(self, loop: AbstractEventLoop, done: Callable[[], None]) -> None:
        """The leader has exited: call back when nobody inside is left."""

    def signal(self, number: int, *, tree: bool) -> int:
        """Signal the command's group or everybody inside; how many were reached."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a contained command seems to have met its sandbox, and what is known of that."""

    denied: bool
    denials: tuple[Any, ...] = ()


#: From an exit code (None: not known) and the retained output to a verdict.
Judge = Callable[[int | None, list[bytes]], Verdict]


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
    #: Of a command in a sandbox: ``argv`` is then what holds it.
    containment: Containment | None = field(default=None, repr=False, compare=False)
    #: Asked once, at the exit.
    judge: Judge | None = field(default=None, repr=False, compare=False)

    def without_env(self) -> ProcessSpec:
        """The same for somebody who only wants to know what it was: small, and no secrets."""
        return replace(self, env=_NO_ENV, judge=None)


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


def exit_from_status(
    status: int, *, terminated: bool, usage: Usage | None = None, contained: bool = False
) -> ExitInfo:
    """Read a wait status.  Killed by signal N is 128+N, in a terminal as on pipes.

    ``contained``: what holds a command in a sandbox exits with 128+N for a command that was
    killed by N, so that is read back.
    """
    if contained and os.WIFEXITED(status) and os.WEXITSTATUS(status) - 128 in _SIGNALS:
        status = os.WEXITSTATUS(status) - 128
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


_SIGNALS = frozenset(map(int, signal.valid_signals()))
_NUMBERS = {s.name.removeprefix("SIG").lower(): int(s) for s in signal.Signals}


def signal_number(name: str) -> int | None:
    """``interrupt`` of the wire, or any signal by its lower-case name (``term``, ``sigterm``)."""
    if name == "interrupt":
        return int(signal.SIGINT)
    return _NUMBERS.get(name.removeprefix("sig"))
