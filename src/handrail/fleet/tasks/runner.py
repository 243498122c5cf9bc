"""Runs a file of tasks on a fleet: adopts what an earlier run left, and runs the rest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from handrail.errors import ExecutorTransportFailed, HandrailError
from handrail.fleet.errors import FleetError, NodeUnreachable, WorkspaceGone
from handrail.fleet.lost_tasks import runs_again
from handrail.fleet.tasks import one_task, resume
from handrail.units import counted

if TYPE_CHECKING:
    from handrail.fleet.fleet import Fleet
    from handrail.fleet.reports import Outcome
    from handrail.fleet.tasks.results_file import ResultsFile
    from handrail.fleet.tasks.task_file import Task, TaskFile
    from handrail.fleet.workspace import FleetWorkspace
    from handrail.workspace.process import AsyncProcess

T = TypeVar("T")
#: Labels of the workspaces of a run.
RUN, TASK = "run", "task"
#: States of a node that may still turn out to have what was left on it.
_UNDECIDED = ("pending", "joining", "unreachable")
_PAUSE = 0.5


@dataclass(slots=True)
class Counts:
    """How a run stands; ``ok``, ``failed`` and ``lost`` count the tasks that it skipped too."""

    total: int = 0
    ok: int = 0
    failed: int = 0
    lost: int = 0
    skipped: int = 0
    adopted: int = 0
    running: int = 0

    def add(self, state: str) -> None:
        """Count a result."""
        setattr(self, state, getattr(self, state) + 1)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How tasks are run; ``needs`` are those of ``Fleet.workspace``."""

    concurrency: int = 64
    retries: int = 2
    #: Seconds for which a node that does not answer is waited for.
    lost_after: float = 60.0
    #: Patterns of files that are copied here from each workspace, and the directory for them.
    fetch: Sequence[str] = ()
    fetch_to: str = ""
    needs: dict[str, Any] = field(default_factory=dict)


class NotRun(HandrailError):
    """Some tasks could not begin, for a reason of the fleet; they have no result."""


class Runner:
    """One run of a file of tasks; ``told`` is called with every record."""

    def __init__(
        self,
        fleet: Fleet,
        tasks: TaskFile,
        results: ResultsFile,
        options: RunOptions,
        told: Callable[[dict[str, Any]], object] = lambda record: None,
    ) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self._results = results
        self._journal = results.journal
        self._options = options
        self._told = told
        self._pending: deque[Task] = deque()
        #: Tasks that may become pending again: they are adopted, or under way.
        self._open = 0
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(options.concurrency)
        self._begun_here: set[str] = set()
        self._not_run: list[tuple[Task, BaseException | None]] = []
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.counts = Counts(total=len(tasks.tasks))

    async def run(self) -> Counts:
        """Run what is left of the file; returns when every task has a result.

        Raises NotRun, and what the fleet raises.  Raises OSError at once when a file of ours cannot
        be written; the caller exits then without closing the fleet, so that what runs is adopted
        by the next run.
        """
        working = asyncio.ensure_future(self._run())
        await asyncio.wait((working, self._broken), return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            self._broken.result()
        await working
        if self._not_run:
            task, error = self._not_run[0]
            raise NotRun(
                f"{counted(len(self._not_run), 'task')} could not begin ({task.id}: {error});"
                " run the same command again when that is repaired"
            ) from error
        return self.counts

    async def _run(self) -> None:
        planned = await self._plan()
        self.counts.skipped = len(planned.skip)
        for task in planned.skip:
            self.counts.add(self._results.known[task.id].state)
        for task in planned.lost:
            await self._add_lost(task, "it had begun when its run was killed, and is not there now")
        self._pending.extend(planned.run)
        self._open = len(planned.adopt)
        try:
            async with asyncio.TaskGroup() as group:
                for task, workspace in planned.adopt:
                    group.create_task(self._adopt(task, workspace))
                await self._map()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # what the fleet raised, as callers expect it

    # --- what is left ---------------------------------------------------------------------

    async def _plan(self) -> resume.Plan:
        journal = self._journal
        left = journal.begun.keys() - self._results.known.keys()
        wanted = {journal.begun[id_].workspaces[-1] for id_ in left}
        found = await self._found(wanted) if journal.owners else set()
        planned = resume.plan(self._tasks.tasks, self._results.known, journal.begun, found)
        if journal.owners:
            await self._sweep({workspace for _, workspace in planned.adopt})
        return planned

    async def _found(self, wanted: set[tuple[str, str]]) -> set[str]:
        """The workspaces of this run; nodes that had some of ``wanted`` are waited for."""
        deadline = asyncio.get_running_loop().time() + self._options.lost_after
        while True:
            listed = await self._fleet.workspaces(labels={RUN: self._journal.run})
            found = {one.id for one in listed}
            missing = {node for node, workspace in wanted if workspace not in found}
            if not missing:
                return found
            nodes = (await self._fleet.status()).nodes
            undecided = any(one.id in missing and one.state in _UNDECIDED for one in nodes)
            if not undecided or asyncio.get_running_loop().time() > deadline:
                return found
            await asyncio.sleep(_PAUSE)

    async def _sweep(self, spared: set[str]) -> None:
        """End what dead drivers of these files left, but for what is adopted."""
        for run in (self._journal.run, *self._journal.earlier):
            for one in await self._fleet.workspaces(labels={RUN: run}):
                if one.id not in spared and one.owner != self._fleet.owner:
                    await self._end(one.id)

    async def _end(self, workspace: str) -> None:
        try:
            await one_task.release(await self._fleet.adopt(workspace))
        except (WorkspaceGone, ExecutorTransportFailed):
            pass  # gone already, or its lease ends it

    # --- tasks that were left ---------------------------------------------------------------

    async def _adopt(self, task: Task, workspace: str) -> None:
        async with self._slots:
            try:
                await self._adopted(task, workspace)
            except (ExecutorTransportFailed, FleetError) as error:
                if task.idempotent:
                    self._pending.append(task)
                else:
                    await self._add_lost(task, error)
            finally:
                self._open -= 1
                self._changed.set()

    async def _adopted(self, task: Task, workspace: str) -> None:
        space = await self._reached(workspace)
        process = next(iter(space.processes), None)
        if process is None:  # killed between the journal and the start
            await self._durable(self._journal.again(task))
            self._pending.append(task)
        else:
            self.counts.adopted += 1
            self.counts.running += 1
            try:
                attempts = len(self._journal.begun[task.id].workspaces)
                await self._finish(space, task, process, attempts)
            finally:
                self.counts.running -= 1
        await one_task.release(space)

    async def _reached(self, workspace: str) -> FleetWorkspace:
        deadline = asyncio.get_running_loop().time() + self._options.lost_after
        while True:
            try:
                return await self._fleet.adopt(workspace)
            except NodeUnreachable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_PAUSE)

    # --- tasks that have not begun ------------------------------------------------------------

    async def _map(self) -> None:
        options = self._options
        outcomes = self._fleet.map(
            self._one,
            self._next(),
            concurrency=options.concurrency,
            idempotent=lambda task: task.idempotent,
            retries=options.retries,
            key=str,
            labels=lambda task: {RUN: self._journal.run, TASK: task.id},
            **options.needs,
        )
        async for outcome in outcomes:
            await self._settle(outcome)
            self._slots.release()
            self._open -= 1
            self._changed.set()

    async def _next(self) -> AsyncGenerator[Task, None]:
        """The tasks to begin, each when there is a slot for it."""
        while self._pending or self._open:
            if self._pending:
                await self._slots.acquire()
                self._open += 1
                yield self._pending.popleft()
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _one(self, space: FleetWorkspace, task: Task) -> None:
        attempts = await self._durable(self._journal.begin(task, space.node, space.id))
        self._begun_here.add(task.id)
        self.counts.running += 1
        try:
            await self._finish(space, task, None, attempts)
        finally:
            self.counts.running -= 1

    async def _finish(
        self, space: FleetWorkspace, task: Task, process: AsyncProcess | None, attempts: int
    ) -> None:
        """Wait for a task's end; its record is on disk before its workspace is released."""
        options = self._options
        command = self._tasks.command_of(task)
        try:
            result = await one_task.finished(space, command, process, options.lost_after)
            error = None
            if options.fetch:
                error = await one_task.fetch(space, task, options.fetch, options.fetch_to)
        except (ExecutorTransportFailed, FleetError):
            raise
        except HandrailError as problem:
            line = one_task.record_without_exit(
                task, "failed", problem, node=space.node, attempts=attempts
            )
        else:
            line = one_task.record(task, space.node, result, attempts, error)
        lost = line["state"] == "lost"  # its keeper was killed
        if lost and runs_again(task.idempotent, attempts, options.retries):
            self._pending.append(task)
        else:
            await self._add(line)

    async def _settle(self, outcome: Outcome) -> None:
        """Record what ``_one`` could not."""
        task: Task = outcome.task
        if outcome.ok or task.id in self._results.known:
            return
        if task.id in self._begun_here:
            await self._add_lost(task, outcome.error)
        else:
            self._not_run.append((task, outcome.error))

    # --- records --------------------------------------------------------------------------------

    async def _add_lost(self, task: Task, error: object) -> None:
        where = self._journal.begun[task.id].workspaces
        await self._add(
            one_task.record_without_exit(
                task, "lost", error, node=where[-1][0], attempts=len(where)
            )
        )

    async def _add(self, record: dict[str, Any]) -> None:
        await self._durable(self._results.add(record))
        self.counts.add(record["state"])
        self._told(record)

    async def _durable(self, writing: Awaitable[T]) -> T:
        """Wait for a file; when it cannot be written, for ever: the run is over, nothing ends."""
        try:
            return await writing
        except OSError as error:
            if not self._broken.done():
                self._broken.set_exception(error)
            never: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            return await never
