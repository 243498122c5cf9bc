"""One process of this machine: the sink of its child, and the caller's interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from handrail.errors import (
    KeeperLost,
    ResizeFailed,
    StdinClosed,
    TerminateFailed,
    UsageError,
    WriteFailed,
)
from handrail.executor.argument_checks import check_grace, check_size
from handrail.executor.base import Denied, OutputKind
from handrail.executor.network_question import asked
from handrail.executor.output.buffered_session import BufferedSession, UnfinishedLine
from handrail.process.child import Child
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.process.output.output_log import Chunk
from handrail.process.output.stream import STDERR
from handrail.process.signal_names import signal_number

if TYPE_CHECKING:
    from handrail.network.managed.start import NetworkQuestion, NetworkRequest
    from handrail.network.records import Record

#: How long ``terminate`` waits for the exit event after the KILL.
_KILL_SECONDS = 5.0


class LocalSession(BufferedSession):
    """A child, its output buffer and its end."""

    def __init__(self, process_id: str, network: NetworkRequest | None = None) -> None:
        super().__init__(process_id, self._hold)
        self._network = network
        self._questions: dict[int, asyncio.Task[None]] = {}
        #: As a sink: whether output is wanted.  False only while a paced reader lags.
        self.ready = True
        self._waits = False
        self._child: Child | None = None
        self._line = UnfinishedLine()

    def begin(self, child: Child) -> None:
        """Take the started child."""
        self._child = child

    # --- called by the child -------------------------------------------------------------------

    def output(self, child: Child, chunk: Chunk) -> None:
        kind = OutputKind.STDERR if chunk.stream == STDERR else OutputKind.STDOUT
        self._history.add(kind, child.output.read_chunk(chunk), chunk.seq)

    def exited(self, child: Child, seq: int) -> None:
        self._exit = child.exit
        self._history.wake()

    def closed(self, child: Child, seq: int) -> None:
        self._history.end()
        child.output.drop()
        child.sink = None  # the table remembers the child; the output belongs to our holder alone

    def blocked(self, child: Child) -> None:
        self._waits = True

    def question(self, child: Child, question: NetworkQuestion) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(child, question))
        self._questions[question.number] = task
        task.add_done_callback(lambda _: self._questions.pop(question.number, None))

    async def _ask(self, child: Child, question: NetworkQuestion) -> None:
        answer = await asked(self._network, question)
        network: Any = child.spec.network
        if network is not None:
            network.answer(question.number, answer)

    def withdrawn(self, child: Child, number: int) -> None:
        task = self._questions.get(number)
        if task is not None:
            task.cancel()

    def decided(self, child: Child, record: Record) -> None:
        if self._network is not None and self._network.decided is not None:
            self._network.decided(record.decision, record.host, record.port)

    def _hold(self, back: bool) -> None:
        self.ready = not back
        if self.ready and self._waits and self._child is not None:
            self._waits = False
            self._child.output.resume()

    def lost(self) -> None:
        """The executor is closed: what is not known now never will be."""
        if self._exit is None:
            self._exit = ExitInfo(ExitKind.LOST, None)
        self._history.end()

    # --- called by the caller ------------------------------------------------------------------

    async def write(self, data: bytes, timeout: float | None = None) -> None:
        child = self._running_child()
        try:
            turn = child.stdin.write(bytes(data), _always)
            if turn is not None:
                await asyncio.wait_for(turn, timeout)  # if cancelled, nothing is written
            self._line.typed(data)
        except StdinClosed as error:
            raise WriteFailed(f"{error}; nothing was written") from None
        except TimeoutError:
            raise WriteFailed(
                f"the process has not read its input for {timeout:g} s; nothing was written"
            ) from None

    def _running_child(self) -> Child:
        child = self._child
        if child is None or self._exit is not None:
            raise WriteFailed(f"process {self.process_id} has exited; nothing was written")
        return child

    async def close_stdin(self) -> None:
        child = self._child
        if child is None or self._exit is not None:
            return
        for _ in range(self._line.ends() if child.spec.tty else 1):
            child.stdin.finish()

    async def resize(self, rows: int, cols: int) -> None:
        check_size(rows, cols)
        if self._child is None or not self._child.spec.tty:
            raise ResizeFailed(
                f"process {self.process_id} has no terminal; start it with tty to resize it"
            )
        try:
            self._child.output.resize(rows, cols)
        except OSError as error:
            raise ResizeFailed(str(error)) from error

    async def signal(self, name: str) -> None:
        number = signal_number(name)
        if number is None:
            raise UsageError(f"there is no signal {name!r}; use interrupt, or a name such as term")
        if self._child is not None:
            try:
                await self._child.signal(number)
            except KeeperLost:
                pass  # its children were killed with it

    async def terminate(self, grace: float = 0.0) -> None:
        check_grace(grace)
        child = self._child
        if child is None:
            return
        self._history.release()  # the exit event comes after the output
        try:
            await child.end(grace)
        except KeeperLost:
            return  # its children were killed with it
        if not await self._exited_by(time.monotonic() + _KILL_SECONDS):
            raise TerminateFailed(
                f"process {self.process_id} was killed and still runs; it may be waiting for a"
                " device"
            )

    async def refused_hosts(self) -> tuple[Mapping[str, object], ...]:
        from handrail.sandbox.denial import records_of

        child = self._child
        if child is None or child.spec.network is None:
            return ()
        return tuple(record.members() for record in records_of(child.spec.network))

    async def update_network(self, network: NetworkRequest) -> None:
        child = self._child
        if child is not None and child.spec.network is not None and self._exit is None:
            child.spec.network.update(network.rules, network.approved, network.denied)

    async def denied(self) -> Denied:
        verdict = None if self._child is None else self._child.ending.verdict
        if verdict is None:
            return Denied(likely=False)
        return Denied(verdict.denied, tuple(record.members() for record in verdict.denials))


def _always() -> bool:
    return True
