"""The contract: an executor starts processes, a session is one of them, near and far alike.

Workspaces, unified exec and the orchestrator use these classes and nothing below them.  ``local``,
``remote`` and ``fake`` implement them; docs/executors.md tells how to write another.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from handrail.errors import UsageError
from handrail.executor.files import Files
from handrail.process.env_policy import EnvPolicy
from handrail.process.exit_status import ExitInfo
from handrail.process.spec import NO_LIMITS, Limits
from handrail.sandbox.profile import Intent

if TYPE_CHECKING:
    from handrail.executor.stored.source import Result as StoredResult
    from handrail.network.managed.start import NetworkRequest

__all__ = [
    "Denied",
    "ExecSession",
    "Executor",
    "ExecutorFeatures",
    "Files",
    "Limits",
    "OutputEvent",
    "OutputKind",
    "Place",
    "SpawnRequest",
    "Subscription",
    "WaitOutcome",
    "WaitReason",
    "WrappedExecutor",
]


class OutputKind(enum.Enum):
    """The stream of a piece of output; that of a terminal is ``STDOUT``."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One command, complete.

    ``cwd`` is absolute.  ``env`` is the whole environment of the child.  ``size`` is rows and
    columns.  ``sandbox`` is an intent (``handrail.sandbox.profile``); None: no sandbox.
    ``inherited_fds`` are (number in the child, descriptor here), only for executors on this machine
    and without a sandbox.  ``timeout`` is in seconds.
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
    #: Which variables of the executor's own environment the child inherits, under ``env``; None:
    #: no variable.
    env_policy: EnvPolicy | None = None
    #: A name for people, in listings of processes.
    name: str | None = None
    #: What its starter wants to find it by, in listings of processes.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The variables whose values are masked in what is stored of it.
    secret_env: tuple[str, ...] = ()
    #: On another machine: what happens when unread output exceeds the retention.  ``block``: the
    #: process waits, so that a lost connection loses nothing; ``drop``: the oldest output is
    #: dropped, and readers get the size of the gap; None: the executor's default.
    on_lag: Literal["block", "drop"] | None = None
    #: Seconds after which the executor ends the whole tree, whatever becomes of the caller, if it
    #: has ``features.timeouts``.
    timeout: float | None = None
    #: A limit that cannot be enforced is refused, never ignored.
    limits: Limits = NO_LIMITS
    #: The process outlives the executor's session; a later session finds it by ``attach``.
    detach: bool = False
    #: Record for certain what the sandbox refuses; tens of microseconds for each change to files.
    watch_denials: bool = False
    #: A proxy that decides for each host; in a sandbox it is the only way out.
    network: NetworkRequest | None = None
    #: Nothing but its end is wanted: its executor may tell of its start together with that.
    gather: bool = False
    #: Sandboxed processes under one name have one loopback, if they may do the same.
    loopback: str | None = None


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


class WaitReason(enum.StrEnum):
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
        """End the subscription: the process no longer waits for this reader."""


@dataclass(frozen=True, slots=True)
class ExecutorFeatures:
    """What an executor offers beyond the methods that every one has.

    The defaults are those of an executor that promises nothing: what is not offered is not asked
    of it, or refused to the caller before the start.
    """

    #: It runs processes on this machine, for this user, so this program sees the same files.
    local: bool = False
    #: It is reached over a connection, which may fall silent: callers bound their waits.
    remote: bool = False
    #: ``close_stdin`` works without a terminal.
    close_stdin: bool = True
    #: It enforces ``timeout`` of a request, also while its caller is gone.
    timeouts: bool = False
    #: It enforces or refuses ``limits`` of a request.
    limits: bool = False
    #: It honours ``detach`` of a request.
    detach: bool = False
    #: It honours ``watch_denials`` of a request with a sandbox, or refuses the start.
    watch_denials: bool = False
    #: A sandbox can have a directory of the caller's, or that of ``temporary``, as its /tmp.
    private_tmp: bool = False
    #: It honours ``network`` of a request, or refuses the start.
    network: bool = False
    #: It honours ``loopback`` of a request, and connects to it.
    loopback: bool = False


class ExecSession(ABC):
    """One process.  Dropping the object does not end it; ``terminate`` does."""

    #: As in its request.
    process_id: str
    #: It was started with ``detach``: neither its executor's ``close`` nor a workspace's ends it.
    detached: bool = False
    #: Only its stored result is left.
    stored: bool = False

    @abstractmethod
    def subscribe_output(self, *, paced: bool = False) -> Subscription:
        """Output from the first retained byte on, in order, until the streams have ended.

        Each call is a subscriber of its own.  One that lags loses nothing within the retention
        and is told by ``omitted`` beyond it; it never holds up another.  A ``paced`` one loses
        nothing at all: while it lags the process waits, and far away everything else of its
        session too.  Close it when it is not iterated to the end.  From ``terminate`` on nothing
        waits any more, and a paced one is like the others.  Iterating raises
        ExecutorTransportFailed when there may be more that will never come.
        """

    def keep_output(self, limit: int) -> None:  # noqa: B027 (an executor may keep what it wants)
        """Set how many bytes of output are kept for late subscribers; raises nothing."""

    @abstractmethod
    async def write(self, data: bytes, timeout: float | None = None) -> None:
        """Send to stdin, exactly once; raises WriteFailed.

        While the process does not read, this waits, at most ``timeout`` seconds; what stdin has
        not accepted by then is never written.
        """

    @abstractmethod
    async def close_stdin(self) -> None:
        """Close stdin, so that the child reads end of file; raises WriteFailed if that fails.

        In a terminal the end-of-file key is typed, twice after an unfinished line.  A program that
        has put its terminal into raw mode reads that key as a character.
        """

    @abstractmethod
    async def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size, in characters; raises ResizeFailed, and UsageError for a size
        that no terminal has."""

    @abstractmethod
    async def signal(self, name: str) -> None:
        """``interrupt``, or a lower-case name such as ``term``, to the foreground or group.

        Raises UsageError for a name that is none, ExecutorTransportFailed.
        """

    @abstractmethod
    async def terminate(self, grace: float = 0.0) -> None:
        """End the whole tree; with a grace (seconds) HUP or TERM first.

        Raises TerminateFailed, and UsageError for a grace that is none.
        """

    @abstractmethod
    async def wait(self) -> ExitInfo:
        """Wait for the exit and return it; streams that a descendant holds may still be open.

        Raises ExecutorTransportFailed when that will never be known.
        """

    @abstractmethod
    def try_exit_status(self) -> ExitInfo | None:
        """How it ended, if that is known here; never blocks, and raises nothing."""

    @abstractmethod
    async def wait_closed(self) -> None:
        """Wait until the process has exited and all its streams have ended.

        Raises ExecutorTransportFailed when that will never be known.
        """

    @abstractmethod
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

    @abstractmethod
    async def denied(self) -> Denied:
        """Whether the sandbox seems to have caused the failure; call it after the exit.

        Raises what ``wait`` raises.
        """

    async def refused_hosts(self) -> tuple[Mapping[str, object], ...]:
        """The hosts that its managed network has refused so far, as records of ``denied``.

        Raises ExecutorTransportFailed.
        """
        return ()

    async def update_network(self, network: NetworkRequest) -> None:  # noqa: B027 (as above)
        """Decide by other rules and answers of a managed network from now on.

        Raises ExecutorTransportFailed; does nothing for a process that has ended.
        """

    @property
    def last_seq(self) -> int | None:
        """The sequence number of the newest output that is known here; None: that is not known."""
        return None

    async def first_after(self, at: float) -> int:
        """The sequence number of the first output that was stored at this time (epoch) or later.

        0 where no times are known.  Raises ExecutorTransportFailed.
        """
        return 0

    @property
    def out_of_reach(self) -> bool:
        """Whether ``terminate`` would have to wait for a working connection."""
        return False

    def end_later(self) -> None:  # noqa: B027 (called only while it is out of reach)
        """End it as soon as that is possible, and return at once; raises nothing."""


class LoopbackStream(ABC):
    """A connection to what a process listens on; one reader and one writer at a time."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Wait for the next bytes, none at the end; raises OSError when it is broken."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send bytes, and wait until they are taken; raises OSError when it is broken."""

    @abstractmethod
    async def end(self) -> None:
        """Send nothing more; the process may go on sending.  Raises OSError."""

    @abstractmethod
    async def close(self) -> None:
        """End both ways; raises nothing."""


class Executor(ABC):
    """Starts processes on one machine.

    What is not abstract has a default that fits an executor without that ability.
    """

    @property
    def features(self) -> ExecutorFeatures:
        """What it offers; asked for each process, for a resumed connection may offer more."""
        return ExecutorFeatures()

    @abstractmethod
    async def spawn(self, request: SpawnRequest) -> ExecSession:
        """Start a process; raises ExecutorSpawnFailed, also for an option that it cannot honour."""

    @abstractmethod
    async def attach(self, process_id: str) -> ExecSession:
        """Find a process that was started here before; raises ProcessUnknown."""

    async def stored_result(self, session: str, process_id: str) -> StoredResult | None:
        """What is stored of a process that was left; None: nothing.  Raises
        ExecutorTransportFailed."""
        from handrail.executor.stored.source import find_result

        return await find_result(session, process_id)

    @abstractmethod
    async def place(self) -> Place:
        """Describe the machine; raises ExecutorTransportFailed."""

    @property
    @abstractmethod
    def files(self) -> Files:
        """The files of that machine."""

    @abstractmethod
    async def close(self) -> None:
        """End all processes and disconnect; can be repeated, and raises nothing."""

    @property
    def out_of_reach(self) -> bool:
        """Whether there is no connection now on which an answer can be expected."""
        return False

    async def make_root(self, path: str) -> None:  # noqa: B027 (most need nothing made)
        """Called with the root of each workspace before it is looked at; raises FilesError."""

    async def temporary(self) -> str | None:
        """A private directory of that machine that goes with the executor; None: it has none.

        Raises ExecutorSpawnFailed when it cannot be made.
        """
        return None

    async def connect_loopback(self, name: str, port: int) -> LoopbackStream:
        """Connect to what a process listens on, in the network shared under that name.

        Raises ConnectionRefusedError when nothing listens there, ExecutorTransportFailed, and
        UsageError where no network is shared.
        """
        raise UsageError("processes of this executor share no loopback that could be reached")

    async def end_left(self, prefix: str) -> None:  # noqa: B027 (they may end with ``close``)
        """End descendants of exited processes whose ids begin with ``prefix``; raises nothing."""

    async def leave(self, keep: float | None, wanted: Sequence[str] | None) -> None:
        """Announce ``detach``: processes may go on for ``keep`` seconds, or to their end (None).

        The results of the processes ``wanted`` are stored where that is offered; None: of all, and
        of those that are started before ``detach`` from their beginning.  Raises UsageError for a
        ``keep`` that cannot be promised, ExecutorTransportFailed.
        """
        if keep is not None:
            raise UsageError("this executor cannot say how long it keeps processes; leave keep out")

    async def detach(self) -> tuple[str, str | None]:
        """Disconnect and leave all processes running; returns the session's id and resume secret.

        Raises UsageError where that is not possible.
        """
        raise UsageError("this executor cannot leave its processes running; let them end")


class WrappedExecutor(Executor):
    """Forwards everything to another executor; subclasses change a part of it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def features(self) -> ExecutorFeatures:
        return self._executor.features

    @property
    def files(self) -> Files:
        return self._executor.files

    @property
    def out_of_reach(self) -> bool:
        return self._executor.out_of_reach

    async def spawn(self, request: SpawnRequest) -> ExecSession:
        return await self._executor.spawn(request)

    async def attach(self, process_id: str) -> ExecSession:
        return await self._executor.attach(process_id)

    async def stored_result(self, session: str, process_id: str) -> StoredResult | None:
        return await self._executor.stored_result(session, process_id)

    async def place(self) -> Place:
        return await self._executor.place()

    async def make_root(self, path: str) -> None:
        await self._executor.make_root(path)

    async def temporary(self) -> str | None:
        return await self._executor.temporary()

    async def connect_loopback(self, name: str, port: int) -> LoopbackStream:
        return await self._executor.connect_loopback(name, port)

    async def end_left(self, prefix: str) -> None:
        await self._executor.end_left(prefix)

    async def leave(self, keep: float | None, wanted: Sequence[str] | None) -> None:
        await self._executor.leave(keep, wanted)

    async def detach(self) -> tuple[str, str | None]:
        return await self._executor.detach()

    async def close(self) -> None:
        await self._executor.close()
