"""What to start, and how it ended.  Pure data."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from handrail.errors import UsageError
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.name_hints import NamesChecked

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from handrail.errors import SandboxError

DEFAULT_ROWS = 24
DEFAULT_COLS = 80

#: A child that is passed one of these has a listener.
_ANNOUNCED = (seccomp_spawn.PROGRAM, seccomp_spawn.ITSELF)


class OnLag(enum.Enum):
    """What happens to output that its reader does not take."""

    BLOCK = "block"  # the child waits, also while no client is attached
    DROP = "drop"  # the child goes on, and the gap is announced


#: Limits that count bytes.
_BYTES = frozenset({"memory", "file_size", "output", "address_space"})


@dataclass(frozen=True, slots=True)
class Limits(NamesChecked):
    """What a command may take; None: no limit.  Sizes are bytes, and all are whole numbers from 1.

    ``memory`` and ``processes`` (threads count too) are for the command and its descendants
    together.  Where there is a control group for them, the kernel kills a process beyond the
    first, and refuses a process beyond the second; elsewhere the keeper looks 20 times a second
    and ends all of them.  ``output`` counts all that is written to the streams; beyond it the
    command is ended.  The others are for each process: ``cpu_seconds`` of CPU time (then SIGXCPU),
    ``file_size`` of each file (SIGXFSZ), ``open_files`` and ``address_space`` (refused to it as an
    error).  The exit of a command that a limit has ended is ``LIMIT_EXCEEDED``, and its ``limit``
    says which.
    """

    cpu_seconds: int | None = None
    memory: int | None = None
    processes: int | None = None
    file_size: int | None = None
    open_files: int | None = None
    output: int | None = None
    address_space: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if type(value) is not int or not 1 <= value <= 2**62:
                unit = ", in bytes such as 2 << 30" if name in _BYTES else ""
                raise UsageError(f"the limit {name} is a whole number from 1{unit}, not {value!r}")

    def given(self) -> dict[str, int]:
        """The limits that are set, by name; never raises."""
        named = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in named if value is not None}

    def for_keeper(self) -> dict[str, int]:
        """The limits that the keeper sets, by its names; never raises."""
        if self is NO_LIMITS:  # as of nearly all commands
            return {}
        return {_KEEPERS[name]: value for name, value in self.given().items() if name in _KEEPERS}


#: The keeper's name of each limit that it sets.
_KEEPERS = {
    "memory": "memory",
    "processes": "pids",
    "cpu_seconds": "cpu",
    "address_space": "space",
    "open_files": "files",
    "file_size": "filesize",
}
NO_LIMITS = Limits()


class SandboxHandle(Protocol):
    """The running sandbox of a command, as the process table uses it."""

    def sent(self) -> None:
        """Close the fds of which the keeper has copies now."""

    def attend(
        self,
        listener: int,
        loop: AbstractEventLoop,
        keep: Callable[[int], None] | None,
        way_out: Any = None,
    ) -> None:
        """Answer the reported syscalls of the command; owns the fd.

        ``keep`` has the keeper hold what the next server must know of it.  ``way_out``: of a
        managed network.
        """

    @property
    def denials(self) -> Sequence[Any]:
        """What is known to have been refused inside."""

    @property
    def holdings(self) -> tuple[int, int]:
        """The fds of the listener and of the ledger of pending calls; -1: none."""

    def park(self) -> None:
        """Stop using the sandbox: another server takes over."""

    async def set_up(self, loop: AbstractEventLoop) -> bool:
        """Wait until the command is about to start; False when it will not."""

    def abandon(self) -> None:
        """The command was not started."""

    def settle(self, loop: AbstractEventLoop, done: Callable[[], None]) -> None:
        """Call back when the leader has exited and no process of the sandbox is left."""

    def signal(self, number: int, *, tree: bool) -> int:
        """Signal the command's group or all processes inside; how many were reached."""


class NetworkHandle(Protocol):
    """The managed network of a process, as the process table uses it."""

    @property
    def note(self) -> str:
        """What the next server has to know of it."""

    @property
    def way_out(self) -> Any:
        """What the supervisor of its sandbox opens when a process first connects."""

    @property
    def denials(self) -> Sequence[Any]:
        """The hosts that were refused."""

    @property
    def holdings(self) -> dict[bytes, int]:
        """The fds that the keeper holds of it, by their names there."""

    def update(self, rules: Any, approved: Any, denied: Any) -> None:
        """Decide by other rules and answers from now on."""

    def begin(self, number: int) -> None:
        """The process was started and has this number in the keeper."""

    def began(self, child: Any) -> None:
        """The process is known to its owner."""

    def attached(self) -> None:
        """A client is there to be asked."""

    def detached(self) -> None:
        """The client is gone."""

    def ended(self) -> None:
        """No process of it is left."""

    def park(self) -> None:
        """Stop using it: another server takes over."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A command that a program in its sandbox is told to become; without words: it waits for one.

    ``line`` is the fd on which that program hears of it.  ``spawned`` is the child, if it was made
    ahead; otherwise the spec starts it.  ``covers`` are inode and device of each placeholder that
    is covered before the command begins.
    """

    argv: tuple[bytes, ...]
    cwd: bytes
    env: Mapping[bytes, bytes] = field(repr=False)
    line: int
    spawned: Any = None
    #: Ends a child that was made ahead and is not used.
    discard: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    covers: list[int] = field(default_factory=list, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a sandboxed command seems to have been refused something, and the evidence."""

    denied: bool
    denials: tuple[Any, ...] = ()


#: From an exit code (None: not known), the retained output and what is known to a verdict.
Judge = Callable[[int | None, list[bytes], Sequence[Any]], Verdict]


@dataclass(frozen=True, slots=True)
class Group:
    """A control group for several commands; what they may use together, 0: as much as they want."""

    number: int
    memory: int = 0
    cpu_millis: int = 0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One command, complete: nothing is added from the server's own environment."""

    argv: tuple[bytes, ...]
    cwd: bytes
    env: dict[bytes, bytes] = field(repr=False)
    tty: bool = False
    pipe_stdin: bool = False
    arg0: bytes | None = None
    rows: int = DEFAULT_ROWS
    cols: int = DEFAULT_COLS
    name: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    #: Variables whose values are masked in what is stored of it.
    secrets: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    #: (number in the child, descriptor here); the descriptors stay the caller's.  Numbers below
    #: 0 are about how its calls are announced (``keeper/seccomp/spawn.py``).
    passed: tuple[tuple[int, int], ...] = ()
    #: None: wait for an attached reader, drop beyond the retention without one.
    on_lag: OnLag | None = None
    #: Seconds until the whole tree is ended.
    timeout: float | None = None
    limits: Limits = NO_LIMITS
    #: The control group that it shares with others.
    group: Group | None = None
    #: It is not ended with its session.
    detach: bool = False
    #: Closed by the end of its streams alone, however long a descendant holds them.
    waits_for_streams: bool = False
    #: The running sandbox of the command; ``argv`` is then bubblewrap's.
    running_sandbox: SandboxHandle | None = field(default=None, repr=False, compare=False)
    #: The command, for a sandbox that was made ahead.
    waiting: Waiting | None = field(default=None, repr=False, compare=False)
    #: Its managed network.
    network: NetworkHandle | None = field(default=None, repr=False, compare=False)
    #: The network that it shares: under which name, with commands of which key, and the address of
    #: its way out (``sandbox/loopback.py``).
    loopback: tuple[str, str, str] | None = None
    #: The argv and directory as requested, if ``argv`` is bubblewrap's.
    asked: tuple[tuple[bytes, ...], bytes] | None = None
    #: It runs in a sandbox, which a previous server may have made.
    sandboxed: bool = False
    #: Decides once, at the exit, whether the sandbox has refused something.
    judge: Judge | None = field(default=None, repr=False, compare=False)
    #: Closes the sandbox's descriptors in ``passed``; called when the keeper has copies of them.
    sent: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    #: Makes another spec of the same when its sandbox could not be set up; raises the problem that
    #: it is given once this was tried too often.
    again: Callable[[SandboxError], ProcessSpec] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def command(self) -> tuple[tuple[bytes, ...], bytes]:
        """The argv and directory as they were requested."""
        return (self.argv, self.cwd) if self.asked is None else self.asked

    @property
    def announced(self) -> bool:
        """Whether there will be a listener for its syscalls."""
        passed = self.passed
        return bool(passed) and any(number in _ANNOUNCED for number, _ in passed)

    def begun(self) -> ProcessSpec:
        """The spec of a command that has started: without its environment, and what was sent."""
        if self.sandboxed or self.judge or self.network or self.running_sandbox or self.passed:
            return self.changed(env=_NO_ENV, sent=None, again=None, waiting=None)
        return self.without_env()

    def changed(self, **changes: Any) -> ProcessSpec:
        """Version of ``dataclasses.replace`` that takes half of the time."""
        made = object.__new__(ProcessSpec)
        for put, value in zip(_PUTS, _all(self), strict=True):
            put(made, value)
        for name, value in changes.items():
            object.__setattr__(made, name, value)
        return made

    def without_env(self) -> ProcessSpec:
        """A small copy for listings, without the environment; commands that are alike share it."""
        if self.secrets:
            return self._small()  # not shared: secrets are dropped with their process
        key = _compared(self)
        small = _RECENT.get(key)
        if small is None:
            if len(_RECENT) >= _RECENT_MOST:
                _RECENT.clear()
            small = _RECENT[key] = self._small()
        return small

    def _small(self) -> ProcessSpec:
        return self.changed(
            env=_NO_ENV,
            passed=(),
            judge=None,
            running_sandbox=None,
            waiting=None,
            network=None,
            loopback=None,
            sent=None,
            again=None,
        )


_DROPPED = {
    *("env", "passed", "judge", "running_sandbox", "waiting", "network", "loopback"),
    *("sent", "again"),
}
_NAMES = tuple(one.name for one in fields(ProcessSpec))
_PUTS = tuple(vars(ProcessSpec)[name].__set__ for name in _NAMES)
_all = attrgetter(*_NAMES)
_compared = attrgetter(*(name for name in _NAMES if name not in _DROPPED))
_NO_ENV: dict[bytes, bytes] = {}
#: Small copies of recent specs: commands that are alike share one.
_RECENT: dict[tuple[object, ...], ProcessSpec] = {}
_RECENT_MOST = 64
