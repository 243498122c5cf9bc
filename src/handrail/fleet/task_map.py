"""``map``: a task in a workspace each, on a bounded number of lanes.

A lane keeps its line from one workspace to the next.  Tasks are pulled when there is room in the
window, which counts what was pulled and not yet taken by the reader; so a slow reader stops the
pulling, and an endless source is no problem.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from handrail.errors import ExecutorError, FilesError, UsageError
from handrail.fleet.data_line import DataLine
from handrail.fleet.errors import FleetError, NodeLost, NodeUnreachable, QuotaExceeded
from handrail.fleet.lost_tasks import runs_again
from handrail.fleet.placing import Placing, Wish
from handrail.fleet.progress_bar import DrawnCounts
from handrail.fleet.reports import Outcome
from handrail.fleet.workspace import FleetWorkspace

if TYPE_CHECKING:
    from handrail.fleet.node import Node

Tasks = Iterable[Any] | AsyncIterable[Any]
Work = Callable[[FleetWorkspace, Any], Awaitable[Any]]
Progress = Callable[[dict[str, int]], object]

_END = object()
_COUNTS = ("taken", "running", "ok", "failed", "lost", "retried")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """How ``map`` goes about it; times are in seconds."""

    concurrency: int = 64
    ordered: bool = False
    window: int | None = None
    idempotent: bool | Callable[[Any], bool] = False
    retries: int = 2
    timeout: float | None = None
    key: Callable[[Any], str] | None = None
    labels: Callable[[Any], Mapping[str, str]] | Mapping[str, str] | None = None
    progress: Progress | None = None
    #: How long each workspace may wait for room.
    patience: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("retries", 0), ("window", 1)):
            value = getattr(self, name)
            if value is None and name == "window":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} is a whole number from {least} on, not {value!r}")


class TaskMap:
    """One run of ``map``."""

    def __init__(
        self,
        placing: Placing,
        work: Work,
        tasks: Tasks,
        wish: Callable[[], Awaitable[Wish]],
        options: MapOptions,
        counted: Callable[[str], None],
    ) -> None:
        self._placing = placing
        self._work = work
        self._options = options
        self._find_wish = wish
        self._counted = counted
        if not isinstance(tasks, Iterable | AsyncIterable):
            raise UsageError(f"tasks are an iterable, not {tasks!r}")
        self._source = tasks
        self._pulling = asyncio.Lock()
        self._pulled = 0
        window = options.window or 4 * options.concurrency
        self._room = asyncio.Semaphore(window)
        self._outcomes: asyncio.Queue[Outcome | BaseException | None] = asyncio.Queue()
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._exhausted = False

    async def run(self) -> AsyncGenerator[Outcome, None]:
        """The outcomes, as they come or in order."""
        wish = replace(await self._find_wish(), shared=True)
        source = _iterator(self._source)
        loop = asyncio.get_running_loop()
        lanes = [
            loop.create_task(self._lane(source, wish)) for _ in range(self._options.concurrency)
        ]
        ending = loop.create_task(self._end(lanes))
        try:
            async for outcome in self._ordered() if self._options.ordered else self._as_they_come():
                yield outcome
                self._room.release()
        finally:
            self._stop_pulling()  # also a lane whose work goes on after a cancellation
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            await ending
            if isinstance(self._options.progress, DrawnCounts):
                self._options.progress.stop()
            closing = getattr(source, "aclose", None)
            if closing is not None:
                await closing()

    async def _end(self, lanes: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(lanes)
        for lane in lanes:
            if not lane.cancelled() and (error := lane.exception()) is not None:
                self._outcomes.put_nowait(error)
                return
        self._outcomes.put_nowait(None)

    def _stop_pulling(self) -> None:
        """Let every lane end with the task it has, also one that waits for room."""
        self._exhausted = True
        for _ in range(self._options.concurrency):
            self._room.release()

    async def _as_they_come(self) -> AsyncGenerator[Outcome, None]:
        while (outcome := await self._outcomes.get()) is not None:
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome

    async def _ordered(self) -> AsyncGenerator[Outcome, None]:
        early: dict[int, Outcome] = {}
        number = 0
        async for outcome in self._as_they_come():
            early[outcome.index] = outcome
            while number in early:
                yield early.pop(number)
                number += 1

    # --- lanes ----------------------------------------------------------------------------

    async def _lane(self, source: Any, wish: Wish) -> None:
        lane = _Lane()
        try:
            while not self._exhausted:
                await self._room.acquire()
                async with self._pulling:
                    task = _END if self._exhausted else await _next(source)
                    if task is _END:
                        self._exhausted = True
                        self._room.release()
                        return
                    index = self._pulled
                    self._pulled += 1
                self._count(taken=1, running=1)
                outcome = await self._outcome(lane, wish, index, task)
                self._count(running=-1, **{outcome.state: 1})
                self._counted(outcome.state)
                self._outcomes.put_nowait(outcome)
                if not (self._goes_on and lane.pass_on()):
                    await lane.release()
        except BaseException:
            # Its task has no outcome: in order nothing comes behind it, and no room is given back.
            self._stop_pulling()
            raise
        finally:
            # A cancelled lane has something running, which has to end before the map does.
            await lane.release()
            await lane.close()

    @property
    def _goes_on(self) -> bool:
        """Whether a lane that asks for a task gets one, or the end, without waiting."""
        waits = self._exhausted or self._room.locked() or self._pulling.locked()
        return not waits and not isinstance(self._source, AsyncIterable)

    def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            self._counts[name] += change
        if self._options.progress is not None:
            self._options.progress(dict(self._counts))

    async def _outcome(self, lane: _Lane, wish: Wish, index: int, task: Any) -> Outcome:
        options = self._options
        key = None if options.key is None else options.key(task)
        labels = options.labels(task) if callable(options.labels) else options.labels
        if labels:
            wish = replace(wish, labels={**wish.labels, **labels})
        attempts = 0
        while True:
            attempts += 1
            began = time.monotonic()
            try:
                value = await self._attempt(lane, wish, task)
            except asyncio.CancelledError as error:
                task_here = asyncio.current_task()
                if task_here is None or task_here.cancelling():
                    raise
                failure: BaseException = error  # the task's own doing: the lane is not cancelled
            except Exception as error:  # noqa: BLE001 (whatever a task raises is its outcome)
                failure = lane.explain(error)
            else:
                return Outcome(
                    index=index,
                    key=key,
                    task=task,
                    state="ok",
                    value=value,
                    attempts=attempts,
                    node=lane.node,
                    duration=time.monotonic() - began,
                )
            took = time.monotonic() - began
            lost = isinstance(failure, NodeLost | NodeUnreachable)
            if lost and runs_again(self._may_repeat(task), attempts, options.retries):
                self._count(retried=1)
                await lane.wait_for_end(failure)
                await lane.release()
                continue
            return Outcome(
                index=index,
                key=key,
                task=task,
                state="lost" if lost else "failed",
                error=failure,
                attempts=attempts,
                node=lane.node,
                duration=took,
            )

    def _may_repeat(self, task: Any) -> bool:
        idempotent = self._options.idempotent
        return bool(idempotent(task)) if callable(idempotent) else idempotent

    async def _attempt(self, lane: _Lane, wish: Wish, task: Any) -> Any:
        lane.node = None  # until there is one: that of the task before is not this one's
        space = await self._placed(lane, wish)
        await lane.took(space)
        async with asyncio.timeout(self._options.timeout):
            return await self._work(space, task)

    async def _placed(self, lane: _Lane, wish: Wish) -> FleetWorkspace:
        """A workspace; one that its tenant may not have now is waited for, as room is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.patience
        while True:
            left = deadline - loop.time()
            try:
                return await self._placing.place(wish, left, lane.line)
            except QuotaExceeded as error:
                if left <= 0 or wish.amounts.of(error.what) > error.limit:
                    raise
            if lane.line is not None:
                await lane.line.settle()  # what it holds may be what is waited for
            await self._placing.changed(left)


class _Lane:
    """One task after the other, each in its workspace, over one line while the node stays."""

    def __init__(self) -> None:
        self.line: DataLine | None = None
        self._space: FleetWorkspace | None = None
        self.node: str | None = None

    async def took(self, space: FleetWorkspace) -> None:
        self._space, self.node = space, space.node
        if self.line is not None and self.line is not space.line:
            line, self.line = self.line, space.line
            await _let_go(line)
        self.line = space.line

    def explain(self, error: Exception) -> Exception:
        """The error, or the loss of the node that caused it."""
        space = self._space
        if space is None or isinstance(error, FleetError):
            return error
        if isinstance(error, ExecutorError | FilesError | TimeoutError):
            if space.state == "lost":
                return NodeLost(space.node, str(error))
            if space.state == "unreachable" or space.line.node.state == "unreachable":
                return NodeUnreachable(space.node, str(error) or "it was silent until the timeout")
        return error

    async def wait_for_end(self, failure: BaseException) -> None:
        """Before a second attempt: wait until the first one is over for certain, or lost."""
        if self._space is None or not isinstance(failure, NodeUnreachable):
            return
        node: Node = self._space.line.node
        await node.settled(node.settings.lost_after)

    def pass_on(self) -> bool:
        """Leave the release of its workspace to the next one; False: that cannot be."""
        if self._space is None or not self._space.pass_on():
            return False
        self._space = None
        return True

    async def release(self) -> None:
        space, self._space = self._space, None
        if space is not None:
            await space.release()
        if self.line is not None:
            await self.line.settle()

    async def close(self) -> None:
        line, self.line = self.line, None
        if line is not None:
            await _let_go(line)


async def _let_go(line: DataLine) -> None:
    await line.settle()
    if not line.node.keep(line):
        line.node.lines.discard(line)
        await line.close()


def _iterator(tasks: Tasks) -> Any:
    return aiter(tasks) if isinstance(tasks, AsyncIterable) else iter(tasks)


async def _next(source: Any) -> Any:
    if hasattr(source, "__anext__"):
        try:
            return await anext(source)
        except StopAsyncIteration:
            return _END
    return next(source, _END)
