"""One process of an agent: its unread output, its exit, its events.

One task reads the output for as long as there is any; another waits for the exit.  Calls take what
has come since the last answer, one call at a time (``lock``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from handrail.errors import ExecutorError, ProcessUnknown
from handrail.executor.base import ExecSession, OutputEvent
from handrail.executor.output.head_tail import HeadTail
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.process.output.output_log import RETENTION_BYTES
from handrail.unified_exec.events import Begin, Delta, End, Event, Frames, Interaction
from handrail.unified_exec.transcript import Transcript
from handrail.unified_exec.wait import Collection, Pauses

#: How long the last event waits for output that a descendant holds open.
TRAILING_GRACE = 0.1


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a process; the same for every start of one call."""

    call_id: str
    process_id: int
    cmd: str
    argv: tuple[str, ...]
    cwd: str
    tty: bool


class Process:
    """A started process, from the first byte to the last."""

    def __init__(
        self,
        origin: Origin,
        session: ExecSession,
        *,
        clock: Callable[[], float],
        listener: Callable[[Event], None],
        buffer_bytes: int,
        transcript: Transcript,
        attempt: int = 1,
    ) -> None:
        self.origin = origin
        self._session: ExecSession | None = session
        self.attempt = attempt
        self.started = clock()
        self.last_used = self.started
        self.lock = asyncio.Lock()
        self.transcript = transcript
        #: Open questions about this process; they move the deadlines of its calls.
        self.pauses = Pauses()
        #: Offset in the whole output up to which answers were given.
        self.reported = 0
        self.exit: ExitInfo | None = None
        self.exited_at = 0.0
        #: The connection to it is lost; nothing more will be known.
        self.failure = ""
        self.closed = False
        self._clock = clock
        self._listener = listener
        self._buffer_bytes = buffer_bytes
        self._unread = HeadTail(buffer_bytes)
        self._whole = HeadTail(buffer_bytes)
        self._frames = Frames()
        self._ended = False
        #: A call is writing, and the end that it holds up.
        self._writing = False
        self._end_waits = False
        self._told = False
        self._changed = asyncio.Event()
        listener(
            Begin(
                origin.call_id,
                origin.process_id,
                origin.argv,
                origin.cwd,
                origin.cmd,
                origin.tty,
                attempt=attempt,
            )
        )
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._wait())]

    @property
    def session(self) -> ExecSession:
        if self._session is None:
            raise ProcessUnknown(f"process {self.origin.process_id} has ended and was let go")
        return self._session

    def let_go(self) -> None:
        """Keep only what can still be read of a process whose end was reported."""
        self._told = True
        if self.exited and self.closed:
            self._session = None

    @property
    def exited(self) -> bool:
        return self.exit is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell shows it; -1 where it is not known."""
        if self.exit is None:
            return None
        return -1 if self.exit.code is None else self.exit.code

    async def collect(self, collection: Collection) -> HeadTail:
        """Collect output until ``collection`` says enough.

        If the call is cancelled meanwhile, the next one gets it.
        """
        result = HeadTail(self._buffer_bytes)
        collection.begin(self._clock())
        try:
            while True:
                took = self._unread.total > 0
                if took:
                    result.extend(self._unread.take())
                seconds = collection.next_wait(
                    self._clock(), took=took, exited=self.exited, closed=self.closed
                )
                if seconds is None:
                    break
                if seconds:
                    self._changed.clear()
                    await _wait_for(self._changed, seconds)
                else:
                    # A flood of output must not starve other tasks.
                    await asyncio.sleep(0)
        except BaseException:
            self._put_in_front(result)
            raise
        self.reported += result.total
        return result

    def give_back(self, taken: HeadTail) -> None:
        """Undo a ``collect`` after a call that gave no answer."""
        self.reported -= taken.total
        self._put_in_front(taken)

    def _put_in_front(self, taken: HeadTail) -> None:
        taken.extend(self._unread)
        self._unread = taken

    def touch(self) -> None:
        self.last_used = self._clock()

    def wake(self) -> None:
        """Wake the waiting call."""
        self._changed.set()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Tell no end meanwhile: what ended it may be what is written, which is told first."""
        self._writing = True
        try:
            yield
        finally:
            self._writing = False
            if self._end_waits and not self._ended:
                self._end()

    def interaction(self, stdin: str) -> None:
        """Report that a call wrote, or waited without new output."""
        if not self._ended:
            self._listener(Interaction(self.origin.call_id, self.origin.process_id, stdin))

    def fail(self, why: str) -> None:
        """The connection to it is lost: take it as ended."""
        self.failure = self.failure or why
        if self.exit is None:
            self.exited_at = self._clock()
            self.exit = ExitInfo(ExitKind.LOST, None)
        self.closed = True
        self._news()

    async def exit_within(self, seconds: float) -> bool:
        """Wait a moment for an exit that is about to be known."""
        limit = self._clock() + seconds
        while not self.exited and (left := limit - self._clock()) > 0:
            self._changed.clear()
            await _wait_for(self._changed, left)
        return self.exited

    async def close(self) -> None:
        """Stop listening.  The process itself is not touched."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writing = False
        if not self._ended:
            self._end()

    async def _read(self) -> None:
        try:
            self.session.keep_output(RETENTION_BYTES)  # there is no later reader
            async for event in self.session.subscribe_output():
                self._receive(event)
        except ExecutorError as error:
            self.failure = self.failure or str(error)
        self.closed = True
        self._news()
        if self._told:
            self.let_go()

    def _receive(self, event: OutputEvent) -> None:
        if event.omitted:
            for place in (self._unread, self._whole, self.transcript):
                place.skip(event.omitted)
        data = event.data
        self._unread.append(data)
        self.transcript.append(data)
        if not self._ended:
            self._whole.append(data)
            self._tell(self._frames.cut(data))
        self._changed.set()

    def _tell(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._listener(Delta(self.origin.call_id, self.origin.process_id, piece))

    async def _wait(self) -> None:
        try:
            ended = await self.session.wait()
        except ExecutorError as error:
            self.fail(str(error))
            return
        if self.exit is not None:
            return
        self.exited_at = self._clock()
        self.exit = ended
        self._news()
        if not self._ended:
            await asyncio.sleep(TRAILING_GRACE)
            if not self._ended:
                self._end()

    def _news(self) -> None:
        if self.exited and self.closed and not self._ended:
            self._end()
        self._changed.set()

    def _end(self) -> None:
        if self._writing:
            self._end_waits = True
            return
        self._tell(self._frames.cut(b"", final=True))
        self._ended = True
        output = self._whole.rendered()
        if self.failure:
            output += b"\n" + os.fsencode(self.failure)
        code = -1 if self.failure or self.exit_code is None else self.exit_code
        self._listener(
            End(
                self.origin.call_id,
                self.origin.process_id,
                code,
                output,
                (self.exited_at or self._clock()) - self.started,
                "completed" if code == 0 else "failed",
                self.exit,
                self.failure,
                self.attempt,
            )
        )
        self._whole = HeadTail(0)


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(None if seconds == float("inf") else seconds):
            await event.wait()
    except TimeoutError:
        pass
