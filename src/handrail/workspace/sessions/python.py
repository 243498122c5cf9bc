"""``AsyncPythonSession``: a Python interpreter that keeps its state, in the workspace's sandbox.

The process is ``python_driver``, which holds an IPython kernel; requests and events are JSON lines
on its pipes, so that it is the same on another machine and after ``attach``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Self

from handrail.errors import (
    ExecutorError,
    ExecutorSpawnFailed,
    ProcessError,
    StdinClosed,
    UsageError,
)
from handrail.futures import set_done
from handrail.secret_masks import Secrets
from handrail.workspace.arguments import byte_count, seconds
from handrail.workspace.process import AsyncProcess
from handrail.workspace.result import Output
from handrail.workspace.sessions.python_result import (
    CodeError,
    Collecting,
    MaskedOutput,
    PythonResult,
)
from handrail.workspace.sessions.restartable import RestartableSession
from handrail.workspace.sessions.shell import MAX_OUTPUT
from handrail.workspace.uncancellable import to_the_end

#: How long the kernel may take to start.
_START_SECONDS = 60.0
#: How long code may take to end after its interrupt.
_INTERRUPT_SECONDS = 3.0
#: A longer event is dropped.
_EVENT_BYTES = 256 * 1024 * 1024


class PythonEnded(ProcessError):
    """The interpreter of a Python session has ended; ``restart`` starts another."""


class AsyncPythonSession(RestartableSession["_Life"]):
    """A Python session.  Made by ``AsyncWorkspace.python``; ``async with`` ends it.

    Each piece of code finds the variables, imports and directory of the last.  Calls are run one
    after the other.
    """

    def __init__(self, start: Callable[[], Awaitable[AsyncProcess]]) -> None:
        """``start`` starts the driver."""
        self._start = start
        super().__init__()

    async def _open(self, process: AsyncProcess | None = None) -> Self:
        """Start the interpreter, or go on with ``process``, the one of an earlier session.

        Raises ExecutorSpawnFailed, and UsageError when its machine does not have the packages.
        """
        async with self._lock:
            if self._life is None:
                self._life = await self._begin(process)
        return self

    async def _begin(self, process: AsyncProcess | None = None) -> _Life:
        life = _Life(process or await self._start())
        ours = process is None  # another's interpreter goes on when it does not answer
        try:
            async with asyncio.timeout(_START_SECONDS):
                if ours:
                    await asyncio.shield(life.ready)
                else:
                    await life.call({"do": "ping"}, 0).done
        except TimeoutError:
            await life.end(terminate=ours)
            raise ExecutorSpawnFailed(
                f"the Python kernel did not answer within {_START_SECONDS:.0f} s: {life.said}"
            ) from None
        except BaseException:
            await to_the_end(life.end(terminate=ours))
            raise
        if life.missing is not None or not life.process.running:
            await life.end(terminate=ours)
            if life.missing is not None:
                raise UsageError(life.missing)
            said = life.said or "it said nothing; is python= an interpreter of Python?"
            raise ExecutorSpawnFailed(f"the Python kernel ended at its start: {said}")
        return life

    @property
    def alive(self) -> bool:
        """Whether the interpreter runs; code such as ``os._exit(1)`` ends it."""
        return self._life is not None and self._life.process.running and not self._life.died

    @property
    def process(self) -> AsyncProcess:
        """Its process, as ``processes`` of the workspace has it; raises UsageError once closed."""
        if self._life is None:
            raise UsageError("the Python session is closed; open another")
        return self._life.process

    async def run(
        self, code: str, *, timeout: float | None = None, max_output: int | None = MAX_OUTPUT
    ) -> PythonResult:
        """Run code and return what it printed, showed and raised.

        ``timeout``: after so many seconds it is interrupted (KeyboardInterrupt); when it has not
        ended three seconds later the interpreter is restarted.  A cancelled call is ended in the
        same way.  ``max_output``: bytes of stdout and of stderr to keep, the first and the last
        half, and of results, the first that fit; None keeps all.  An exception of the code is
        ``error`` of the result.  Raises PythonEnded when the interpreter has ended before,
        UsageError, ExecutorTransportFailed.
        """
        limit = seconds(timeout, "timeout")
        most = None if max_output is None else byte_count(max_output, "max_output")
        if not isinstance(code, str):
            raise UsageError(f"code is a str, not {type(code).__name__}")
        began = time.monotonic()
        async with self._lock:
            if self._life is None or not self.alive:
                raise PythonEnded("this Python session has ended; call restart, or open another")
            call = self._life.call({"do": "run", "code": code}, most)
            try:
                timed_out = not await _within(call.done, limit)
            except asyncio.CancelledError:
                await to_the_end(self._stop(call))
                raise
            restarted = timed_out and await to_the_end(self._stop(call))
        if call.failure is not None:
            raise call.failure
        took = time.monotonic() - began
        return call.collecting.result(took, timed_out=timed_out, restarted=restarted)

    async def _stop(self, call: _Call) -> bool:
        """Interrupt the code; whether the interpreter had to be restarted."""
        life = self._life
        if life is None:
            return False
        await life.send({"do": "interrupt"})
        if await _within(call.done, _INTERRUPT_SECONDS):
            return False
        await life.end()
        self._life = None
        self._life = await self._begin()
        return True

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the code that is being run; without any nothing happens.

        Raises ExecutorTransportFailed.
        """
        if self._life is not None and self._life.busy:
            await self._life.send({"do": "interrupt"})


class _Call:
    def __init__(self, max_output: int | None, masked: Secrets) -> None:
        self.collecting = Collecting(max_output, masked)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure: BaseException | None = None

    def finish(self) -> None:
        set_done(self.done)


class _Life:
    """One driver process: a task that reads its events, and the calls that wait for some."""

    def __init__(self, process: AsyncProcess) -> None:
        loop = asyncio.get_running_loop()
        self.process = process
        self.ready: asyncio.Future[None] = loop.create_future()
        self.missing: str | None = None
        self.died = False
        self._calls: dict[str, _Call] = {}
        self._errors = MaskedOutput(4096, process.secrets)
        self._sends: set[asyncio.Task[None]] = set()
        self._reader = loop.create_task(self._read())

    @property
    def said(self) -> str:
        """What the driver wrote to stderr."""
        return self._errors.take()[0].strip()

    @property
    def busy(self) -> bool:
        """Whether a call waits for its end."""
        return bool(self._calls)

    def call(self, request: dict[str, object], max_output: int | None) -> _Call:
        """Send a request; the call is done when its last event has come."""
        name, call = secrets.token_hex(8), _Call(max_output, self.process.secrets)
        self._calls[name] = call
        if self._reader.done():
            call.finish()
        else:
            task = asyncio.get_running_loop().create_task(self.send({**request, "id": name}))
            self._sends.add(task)
            task.add_done_callback(self._sends.discard)
        return call

    async def send(self, request: dict[str, object]) -> None:
        """Write one request; that the driver has ended meanwhile is found by its exit."""
        try:
            await self.process.send(json.dumps(request) + "\n")
        except (ExecutorError, StdinClosed):
            pass

    async def _read(self) -> None:
        failure: BaseException | None = None
        held: list[bytes] = []
        size = 0
        try:
            async for event in self.process.follow():
                if not isinstance(event, Output):
                    continue
                if event.stream == "stderr":
                    self._errors.add(event.data)
                    continue
                for number, piece in enumerate(event.data.split(b"\n")):
                    if number:
                        self._heard(b"".join(held), size)
                        held, size = [], 0
                    size += len(piece)
                    held.append(piece)
                    if size > _EVENT_BYTES:
                        held.clear()
        except ExecutorError as error:
            failure = error
        finally:
            self._over(failure)

    def _over(self, failure: BaseException | None) -> None:
        self.died = True
        set_done(self.ready)
        for call in self._calls.values():
            call.failure = failure
            if call.collecting.error is None:
                call.collecting.error = _DIED
            call.finish()
        self._calls.clear()

    def _heard(self, line: bytes, size: int) -> None:
        """Handle one line of the driver; it is empty if its ``size`` was over the limit.

        One that is no event is ignored: code can write to the driver's stdout, and the rest of a
        line is left when its beginning was dropped before we came back.
        """
        if size > _EVENT_BYTES:
            for call in self._calls.values():
                call.collecting.omitted += size
            return
        try:
            self._take(json.loads(line), size)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass

    def _take(self, event: dict[str, Any], size: int) -> None:
        kind, call = event["event"], self._calls.get(event.get("id", ""))
        if kind == "ready" and not self.ready.done():
            self.ready.set_result(None)
        elif kind == "missing":
            self.missing = self.process.secrets.masked_text(
                f"a Python session needs packages that {event['python']} does not have"
                f" ({event['text']}): pip install 'handrail[notebook]', or name another"
                " interpreter with python="
            )
        elif kind == "died":
            self._over(None)
        elif call is not None and kind == "done":
            self._calls.pop(event["id"], None)
            call.finish()
        elif call is not None:
            call.collecting.add(event, size)

    async def end(self, *, terminate: bool = True) -> None:
        """End the reader, and the driver with its kernel if so; never raises."""
        if terminate:
            try:
                await self.process.terminate()  # with time to remove its directory
            except (ExecutorError, ProcessError):
                pass  # the connection is lost, and its server ends it
            await asyncio.wait((self._reader,), timeout=0.5)
        self._reader.cancel()
        await asyncio.gather(self._reader, *self._sends, return_exceptions=True)


_DIED = CodeError("KernelDied", "the interpreter has ended while it ran this", "")


#: The working directory is not in ``sys.path``: a json.py of the workspace is not for the driver.
_LAUNCH = "import sys; sys.path = [p for p in sys.path if p]; exec(sys.argv.pop(1))"


def driver() -> tuple[str, ...]:
    """The arguments of an interpreter that make it run the driver."""
    text = files("handrail.workspace.sessions").joinpath("python_driver.py").read_text("utf-8")
    return "-c", _LAUNCH, text


def is_driver(argv: Sequence[str | bytes]) -> bool:
    """Whether a process was started with a driver, also one of another version."""
    return tuple(argv[1:3]) == ("-c", _LAUNCH)


async def _within(future: asyncio.Future[None], limit: float | None) -> bool:
    return bool((await asyncio.wait((future,), timeout=limit))[0])
