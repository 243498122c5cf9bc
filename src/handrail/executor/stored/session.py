"""A process of which only the stored result is left, as a session of an executor."""

from __future__ import annotations

from handrail.errors import ResizeFailed, TerminateFailed, WriteFailed
from handrail.executor.base import Denied, ExecSession, WaitOutcome
from handrail.executor.output.buffer import OutputBuffer
from handrail.executor.stored.reader import ResultReader, first_after
from handrail.executor.stored.source import Result
from handrail.executor.wait_for import Looking, Patience, follow
from handrail.process.exit_status import ExitInfo, ExitKind, Usage
from handrail.results.store import About

_ENDED = "it has ended, and only its result is left"


class StoredSession(ExecSession):
    """A process of which only the stored result is left."""

    stored = True

    def __init__(self, process_id: str, result: Result) -> None:
        self.process_id = process_id
        self.result = result
        self._exit = exit_info(result.about)

    def subscribe_output(self, *, paced: bool = False) -> ResultReader:
        return ResultReader(self.result)

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        raise WriteFailed(f"process {self.process_id} takes no input: {_ENDED}")

    async def close_stdin(self) -> None:
        """Do nothing: it has no stdin any more."""

    async def resize(self, rows: int, cols: int) -> None:
        raise ResizeFailed(f"process {self.process_id} has no terminal: {_ENDED}")

    async def signal(self, name: str) -> None:
        """Do nothing, as for every process that has ended; raises TerminateFailed."""
        self._check_ended()

    async def terminate(self, grace: float = 0.0) -> None:
        """Do nothing: it has ended; raises TerminateFailed if that is not known."""
        self._check_ended()

    def _check_ended(self) -> None:
        if self.result.about.exit is None:
            raise TerminateFailed(
                f"whether {self.process_id} has ended is not known: its server and keeper are gone;"
                " the next `handrail serve` on their state directory ends what is left of it"
            )

    async def wait(self) -> ExitInfo:
        return self._exit

    def try_exit_status(self) -> ExitInfo:
        return self._exit

    async def wait_closed(self) -> None:
        """Return at once: nothing more will come."""

    async def wait_for(
        self,
        *patterns: str | bytes,
        idle: float | None = None,
        exit: bool = True,  # noqa: A002 (what is waited for)
        timeout: float | None = None,
        start: int = 0,
    ) -> WaitOutcome:
        history = OutputBuffer()
        async for event in self.subscribe_output():
            history.add(event.kind, event.data, event.seq, event.omitted)
        history.end()
        looking = Looking(history, lambda: True, patterns, exit=exit, start=start)
        return await follow(looking, Patience(idle, timeout))

    async def first_after(self, at: float) -> int:
        return await first_after(self.result, at)

    async def denied(self) -> Denied:
        about = self.result.about
        return Denied(about.denied, tuple(about.denials))


def exit_info(about: About) -> ExitInfo:
    """How a stored process ended; ``lost`` if its server and keeper went before it."""
    stored = about.exit
    if stored is None:
        return ExitInfo(ExitKind.LOST, None)
    usage = None if stored.usage is None else Usage(*stored.usage)
    return ExitInfo(
        ExitKind(stored.kind),
        stored.code,
        stored.signal,
        stored.core_dumped,
        usage,
        stored.limit,
    )
