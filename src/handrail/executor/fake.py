"""A scripted executor for tests: runs nothing, records every request.

Each command is answered by the first script that fits it.  A script is a list of steps: write
output, expect input, pause until the test continues, exit.  A command that no script fits is
refused like a program that does not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from handrail.errors import (
    ExecutorSpawnFailed,
    ProcessUnknown,
    ResizeFailed,
    UsageError,
    WriteFailed,
)
from handrail.executor.argument_checks import check_grace, check_sandbox, check_size, fits_terminal
from handrail.executor.base import (
    Denied,
    Executor,
    ExecutorFeatures,
    OutputKind,
    Place,
    SpawnRequest,
)
from handrail.executor.fake_files import CWD, HOME, TEMP, FakeFiles
from handrail.executor.output.buffered_session import BufferedSession
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.process.signal_names import signal_number


@dataclass(frozen=True, slots=True)
class Say:
    """Write to stdout, or to stderr."""

    data: bytes
    stderr: bool = False


@dataclass(frozen=True, slots=True)
class Expect:
    """Continue when this has been written to stdin; input before it is skipped."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Continue when the test calls ``resume`` of the session."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End with this code.  A script without one ends with 0."""

    code: int = 0


_FEATURES = ExecutorFeatures(limits=True, watch_denials=True)
Step = Say | Expect | Pause | Exit
#: The argv of a command, its shell script or joined argv, or a test of the whole request.
Fits = str | Sequence[str] | Callable[[SpawnRequest], bool]


@dataclass(frozen=True, slots=True)
class _Script:
    fits: Fits
    steps: tuple[Step, ...]
    failure: str | None = None
    denied: bool = False


@dataclass(eq=False)
class FakeSession(BufferedSession):
    """One scripted process; what was done to it is in its public lists.

    It raises what the contract says, like a process that has exited or has no terminal.
    """

    request: SpawnRequest
    script: _Script
    written: bytearray = field(default_factory=bytearray)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    stdin_closed: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.request.process_id)
        self._resumed = asyncio.Semaphore(0)
        self._seq = 0
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._play())

    def resume(self) -> None:
        """Continue the script after its ``Pause``; from any thread."""
        self._hand_over(self._resumed.release)

    def say(self, data: bytes, *, stderr: bool = False) -> None:
        """Write output now, independent of the script; from any thread."""
        self._hand_over(lambda: self._say(data, stderr=stderr))

    def _hand_over(self, action: Callable[[], None]) -> None:
        """Run it on the loop that plays the script: a ``Workspace`` has that in another thread.

        Calls made afterwards come after it.
        """
        if self._here:
            action()
        else:
            with contextlib.suppress(RuntimeError):  # that loop is closed: no reader is left
                self._loop.call_soon_threadsafe(action)

    @property
    def _here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _say(self, data: bytes, *, stderr: bool = False) -> None:
        self._seq += 1
        kind = OutputKind.STDERR if stderr and not self.request.tty else OutputKind.STDOUT
        self._history.add(kind, data, self._seq)

    async def _play(self) -> None:
        taken = 0
        for step in self.script.steps:
            if isinstance(step, Say):
                self._say(step.data, stderr=step.stderr)
            elif isinstance(step, Expect):
                while (found := self.written.find(step.data, taken)) < 0:
                    await self._history.changed()
                taken = found + len(step.data)
            elif isinstance(step, Pause):
                await self._resumed.acquire()
            else:
                self._end(ExitInfo(ExitKind.EXITED, step.code))
                return
        self._end(ExitInfo(ExitKind.EXITED, 0))

    def _end(self, info: ExitInfo) -> None:
        if self._exit is None:
            self._exit = info
            self._history.end()

    # --- ExecSession -------------------------------------------------------------------------

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        if self._exit is not None:
            raise WriteFailed(f"process {self.process_id} has exited; nothing was written")
        if self.stdin_closed or not (self.request.tty or self.request.pipe_stdin):
            raise WriteFailed("stdin of this process is closed; nothing was written")
        self.written += data
        self._history.wake()

    async def close_stdin(self) -> None:
        self.stdin_closed = True
        self._history.wake()

    async def resize(self, rows: int, cols: int) -> None:
        check_size(rows, cols)
        if not self.request.tty:
            raise ResizeFailed(
                f"process {self.process_id} has no terminal; start it with tty to resize it"
            )
        self.sizes.append((rows, cols))

    async def signal(self, name: str) -> None:
        number = signal_number(name)
        if number is None:
            raise UsageError(f"there is no signal {name!r}; use interrupt, or a name such as term")
        if self._exit is None:
            self.signals.append(name)
            await self._stop(ExitInfo(ExitKind.SIGNALED, 128 + number, _name(name)))

    async def terminate(self, grace: float = 0.0) -> None:
        check_grace(grace)
        await self._stop(ExitInfo(ExitKind.TERMINATED, 137, "SIGKILL"))

    async def _stop(self, info: ExitInfo) -> None:
        if not self._here:
            self._hand_over(lambda: self._stop_here(info))
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end(info)

    def _stop_here(self, info: ExitInfo) -> None:
        self._task.cancel()
        self._end(info)

    async def denied(self) -> Denied:
        return Denied(likely=self.script.denied)


class FakeExecutor(Executor):
    """An ``Executor`` of scripted processes; only ``spawn`` and ``attach`` raise.

    ``features`` is what it claims to offer: limits and the like are recorded in ``requests``.
    """

    def __init__(
        self, *, honours_sandboxes: bool = True, features: ExecutorFeatures = _FEATURES
    ) -> None:
        self._scripts: list[_Script] = []
        self._honours_sandboxes = honours_sandboxes
        self._closed = False
        #: Every request, refused ones too, in order.
        self.requests: list[SpawnRequest] = []
        #: The processes that were started, by id.
        self.sessions: dict[str, FakeSession] = {}
        self._features = features
        self._files = FakeFiles()

    @property
    def features(self) -> ExecutorFeatures:
        """As given."""
        return self._features

    @property
    def files(self) -> FakeFiles:
        """Files in memory, by path in ``content``."""
        return self._files

    def on(self, fits: Fits, *steps: Step, denied: bool = False) -> None:
        """Answer commands that fit with these steps; earlier scripts win over later ones.

        ``fits``: a string is the last argument of a command (a shell's script) or its argv joined;
        a sequence is its whole argv; a callable is called with the request.
        """
        self._scripts.append(_Script(fits, steps, denied=denied))

    def replies(
        self, fits: Fits, stdout: bytes = b"", *, stderr: bytes = b"", code: int = 0
    ) -> None:
        """Answer commands that fit with output and an exit code."""
        steps: list[Step] = [Say(stdout)] if stdout else []
        if stderr:
            steps.append(Say(stderr, stderr=True))
        self.on(fits, *steps, Exit(code))

    def fails(self, fits: Fits, why: str = "No such file or directory (os error 2)") -> None:
        """Refuse to start commands that fit."""
        self._scripts.append(_Script(fits, (), failure=why))

    async def spawn(self, request: SpawnRequest) -> FakeSession:
        """Start the first script that fits; raises ExecutorSpawnFailed."""
        self.requests.append(request)
        if self._closed:
            raise ExecutorSpawnFailed("this executor is closed; make a new one")
        check_sandbox(request.sandbox)
        if request.sandbox is not None and not self._honours_sandboxes:
            raise ExecutorSpawnFailed("sandbox intent cannot be enforced on this executor")
        rows, cols = request.size
        if not fits_terminal(rows, cols):
            raise ExecutorSpawnFailed(
                f"a terminal has 1 to 65535 rows and columns, not {rows}x{cols}"
            )
        if request.process_id in self.sessions:
            raise ExecutorSpawnFailed(f"process {request.process_id} already exists")
        for script in self._scripts:
            if _fits(script.fits, request):
                break
        else:
            words = shlex.join(_words(request))
            raise ExecutorSpawnFailed(f"no script fits {words}; add one with on() or replies()")
        if script.failure is not None:
            raise ExecutorSpawnFailed(script.failure)
        session = self.sessions[request.process_id] = FakeSession(request, script)
        return session

    async def attach(self, process_id: str) -> FakeSession:
        """A process that was started here; raises ProcessUnknown."""
        try:
            return self.sessions[process_id]
        except KeyError:
            raise ProcessUnknown(f"no process {process_id} was started here") from None

    async def place(self) -> Place:
        """The description of a machine that does not exist."""
        return Place("/bin/sh", CWD, HOME, TEMP, "linux")

    async def make_root(self, path: str) -> None:
        """Make the root of a workspace, with whatever is missing above it."""
        if path not in self.files.content:
            await self.files.mkdir(path)

    async def close(self) -> None:
        """End every script."""
        self._closed = True
        for session in self.sessions.values():
            await session.terminate()


def _fits(fits: Fits, request: SpawnRequest) -> bool:
    if callable(fits):
        return fits(request)
    words = _words(request)
    if isinstance(fits, str):
        return bool(words) and fits in (words[-1], " ".join(words))
    return words == list(fits)


def _words(request: SpawnRequest) -> list[str]:
    return [w.decode("utf-8", "replace") if isinstance(w, bytes) else w for w in request.argv]


def _name(name: str) -> str:
    short = "int" if name == "interrupt" else name.removeprefix("sig")
    return "SIG" + short.upper()
