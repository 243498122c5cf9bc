"""The contract: an executor starts processes, a session is one of them, near and far alike.

Everything above (the front door, unified exec, the orchestrator) speaks to these faces and to
nothing below them.  ``local``, ``remote`` and ``fake`` are their bodies.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from handrail.executor.files import Files
from handrail.process.env_policy import EnvPolicy
from handrail.process.spec import ExitInfo
from handrail.sandbox.profile import Intent

__all__ = [
    "Denied",
    "ExecSession",
    "Executor",
    "Files",
    "OutputEvent",
    "OutputKind",
    "Place",
    "SpawnRequest",
    "Subscription",
    "WaitOutcome",
    "WaitReason",
]


class OutputKind(enum.Enum):
    """Where output came from; a terminal's is ``STDOUT``."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One command, complete.

    ``cwd`` is absolute.  ``env`` is the whole environment of the child.  ``size`` is rows and
    columns.  ``sandbox`` is an intent (``handrail.sandbox.profile``); None: no sandbox.
    ``inherited_fds`` are (number in the child, descriptor here) and only for executors on this
    machine.  ``timeout`` is in seconds.
    """

    process_id: str
    argv: tuple[str | bytes, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    arg0: str | None = None
    tty: bool = False
    size: tuple[int, int] = (24, 80)
    sandbox: Intent | None = None
    inherited_fds: tuple[tuple[int, int], ...] = ()
    #: Pipes only: a stdin that can be written to; a terminal always has one.
    pipe_stdin: bool = True
    #: What the child inherits of the executor's own environment before ``env`` is laid over it;
    #: None: nothing.
    env_policy: EnvPolicy | None = None
    #: A name for people, in listings of processes.
    name: str | None = None
    #: Far away: what becomes of output beyond the retention that was not taken.  ``block``: the
    #: process waits, so that a lost connection loses nothing; ``drop``: it goes on, and the gap
    #: is told; None: as the executor does.
    on_lag: Literal["block", "drop"] | None = None
    #: Far away: seconds after which the server ends the whole tree, whatever becomes of us, if it
    #: offers that (``keeps_timeouts`` of the executor says so); the caller ends it in time as well.
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class OutputEvent:
    """A piece of output.  ``omitted`` bytes before it are no longer to be had (0: nothing lost)."""

    kind: OutputKind
    data: bytes
    seq: int
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Denied:
    """What the sandbox refused, as far as it is known."""

    likely: bool
    evidence: tuple[Mapping[str, object], ...] = ()


class WaitReason(enum.Enum):
    """Why a wait is over."""

    PATTERN = "pattern"
    IDLE = "idle"
    EXIT = "exit"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class WaitOutcome:
    """What ended a wait.

    ``position`` is where to go on: behind the match, or behind all output looked at.  It counts
    the bytes of all output of the process, both streams in the order of their numbers.
    """

    reason: WaitReason
    position: int
    #: Which of the patterns matched.
    pattern: int | None = None
    match: bytes = b""


@dataclass(frozen=True, slots=True)
class Place:
    """The machine of an executor, as far as a caller needs to know it.  Paths are native."""

    shell: str
    cwd: str
    home: str | None
    temp_dir: str
    platform: str
    #: Version of the other side's software; "" when it does not say.
    version: str = ""
    #: Names of our extensions that are offered there.
    extensions: frozenset[str] = frozenset()


class Subscription(Protocol):
    """The output of one process for one reader; see ``subscribe_output`` for what it raises."""

    def __aiter__(self) -> AsyncIterator[OutputEvent]: ...

    async def __anext__(self) -> OutputEvent: ...

    def close(self) -> None:
        """Have nothing wait for this reader any more."""


class ExecSession(Protocol):
    """One process.  Dropping the object does not end it; ``terminate`` does."""

    @property
    def process_id(self) -> str:
        """As in its request."""

    def subscribe_output(self, *, paced: bool = False) -> Subscription:
        """Output from the first retained byte on, in order, until the streams have ended.

        Each call is a subscriber of its own.  One that lags loses nothing within the retention
        and is told by ``omitted`` beyond it; it never holds up another.  A ``paced`` one loses
        nothing at all: while it lags the process waits, and far away everything else of its
        session too.  Close it when it is not iterated to the end.  From ``terminate`` on nothing
        waits any more, and a paced one is like the others.  Iterating raises
        ExecutorTransportFailed when there may be more that will never come.
        """

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        """Send to stdin, exactly once; raises WriteFailed.

        A process that does not read makes it wait, for ``timeout`` seconds at most: what was not
        taken by then never arrives.
        """

    async def close_stdin(self) -> None:
        """End of file for the child; raises WriteFailed where that is not possible.

        In a terminal the end-of-file key is typed, twice behind a line that was begun.  A program
        that has put its terminal into raw mode reads a character then, and no end.
        """

    async def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size, in characters; raises ResizeFailed, and UsageError for a size
        that no terminal has."""

    async def signal(self, name: str) -> None:
        """``interrupt``, or a lower-case name such as ``term``, to the foreground or group.

        Raises UsageError for a name that is none, ExecutorTransportFailed.
        """

    async def terminate(self, grace: float = 0.0) -> None:
        """End the whole tree; with a grace (seconds) HUP or TERM first.

        Raises TerminateFailed, and UsageError for a grace that is none.
        """

    async def wait(self) -> ExitInfo:
        """How it ended.  The streams may still be open then, if a grandchild holds them.

        Raises ExecutorTransportFailed when that will never be known.
        """

    def try_exit_status(self) -> ExitInfo | None:
        """How it ended, if that is known here; never blocks, and raises nothing."""

    async def wait_closed(self) -> None:
        """Until it has exited and every stream has ended: nothing more will come.

        Raises ExecutorTransportFailed when that will never be known.
        """

    async def wait_for(
        self,
        *patterns: str | bytes,
        idle: float | None = None,
        exit: bool = True,  # noqa: A002 (what is waited for)
        timeout: float | None = None,
        start: int = 0,
    ) -> WaitOutcome:
        """Wait for any of: a pattern in the output from ``start`` on, ``idle`` seconds without
        output, the exit, ``timeout`` seconds.  Patterns are regular expressions of ``re``.

        Raises UsageError for one that does not compile, and what ``wait`` raises.
        """

    async def denied(self) -> Denied:
        """Whether its end looks like the sandbox's doing; to be asked after the exit.

        Raises what ``wait`` raises.
        """


class Executor(Protocol):
    """Starts processes on one machine."""

    async def spawn(self, request: SpawnRequest) -> ExecSession:
        """Start one.  Raises ExecutorSpawnFailed, also for what cannot be honoured here."""

    async def attach(self, process_id: str) -> ExecSession:
        """A process that was started here before; raises ProcessUnknown."""

    async def place(self) -> Place:
        """Which machine this is; raises ExecutorTransportFailed."""

    @property
    def files(self) -> Files:
        """The files of that machine."""

    async def close(self) -> None:
        """Let go; can be repeated, and raises nothing.  Its processes end with it."""
