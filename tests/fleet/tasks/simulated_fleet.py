"""A fleet in memory: what is on its nodes outlives its drivers, which can die at named moments."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass, field
from typing import Any

from handrail.fleet import NodeLost, Outcome, WorkspaceGone, WorkspaceInfo
from handrail.fleet.reports import FleetStatus, NodeInfo
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.workspace.result import Result


class Killed(BaseException):
    """The driver was killed here."""


@dataclass
class Process:
    """A command; it ends when it is asked how it ended."""

    argv: list[str]
    server: Nodes
    space: Space

    async def result(self, *, text: bool) -> Result[bytes]:
        assert not text
        await asyncio.sleep(0)
        self.server.moment("running", self.space)
        if self.space.node in self.server.lost:
            raise NodeLost(self.space.node)
        self.server.moment("ended", self.space)
        kind, code = self.server.exits.get(self.space.task, (ExitKind.EXITED, 0))
        return Result(tuple(self.argv), b"out\n", b"", ExitInfo(kind, code), 0.5)


@dataclass
class Space:
    """A workspace on a node, as every driver sees it."""

    server: Nodes
    id: str
    node: str
    owner: str
    labels: dict[str, str]
    processes: list[Process] = field(default_factory=list)
    temporary: str = "/tmp/t"

    @property
    def task(self) -> str:
        return self.labels["task"]

    async def start(self, argv: list[str], **_: Any) -> Process:
        self.server.moment("before start", self)
        if self.node in self.server.lost:
            raise NodeLost(self.node)
        self.server.starts[self.task] += 1
        self.processes.append(Process(argv, self.server, self))
        self.server.moment("started", self)
        return self.processes[-1]

    async def release(self) -> None:
        self.server.moment("release", self)
        self.server.spaces.pop(self.id, None)


class Nodes:
    """What outlives drivers: workspaces, processes; and what happens when."""

    def __init__(self) -> None:
        self.spaces: dict[str, Space] = {}
        self.starts: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.exits: dict[str, tuple[ExitKind, int | None]] = {}
        #: Called at each moment with its name and task.
        self.at: Callable[[str, str], object] = lambda moment, task: None
        self.count = 0

    def moment(self, name: str, space: Space) -> None:
        self.at(name, space.task)

    def lose(self, node: str) -> None:
        self.lost.add(node)
        self.spaces = {i: s for i, s in self.spaces.items() if s.node != node}


class SimulatedFleet:
    """A driver's handle, with what a run uses of ``Fleet``."""

    def __init__(self, nodes: Nodes, owner: str) -> None:
        self.nodes = nodes
        self.owner = owner
        self.states = {"n0": "ready", "n1": "ready"}

    async def status(self) -> FleetStatus:
        nodes = [NodeInfo(id=name, state=state) for name, state in self.states.items()]
        return FleetStatus(name="f", state="up", nodes=nodes, workspaces=len(self.nodes.spaces))

    async def workspaces(self, *, labels: dict[str, str]) -> list[WorkspaceInfo]:
        return [
            WorkspaceInfo(
                id=one.id,
                node=one.node,
                owner=one.owner,
                tenant="default",
                labels=one.labels,
                template=None,
                state="ready",
                held=one.owner == self.owner,
                running=0,
                processes=len(one.processes),
            )
            for one in self.nodes.spaces.values()
            if labels.items() <= one.labels.items()
        ]

    async def adopt(self, id: str) -> Space:  # noqa: A002 (the name it has)
        if id not in self.nodes.spaces:
            raise WorkspaceGone(id)
        space = self.nodes.spaces[id]
        space.owner = self.owner
        return space

    async def map(
        self,
        work: Any,
        tasks: AsyncIterable[Any],
        *,
        labels: Any,
        idempotent: Any,
        retries: int,
        concurrency: int,
        key: Any,
        **needs: Any,
    ) -> Any:
        index = 0
        async for task in tasks:
            index += 1
            yield await self._outcome(work, task, index, labels, idempotent, retries)

    async def _outcome(
        self, work: Any, task: Any, index: int, labels: Any, idempotent: Any, retries: int
    ) -> Outcome:
        attempts = 0
        while True:
            attempts += 1
            self.nodes.count += 1
            ready = [name for name in self.states if name not in self.nodes.lost]
            space = Space(
                self.nodes, f"w{self.nodes.count}", ready[0], self.owner, dict(labels(task))
            )
            self.nodes.spaces[space.id] = space
            self.nodes.moment("created", space)
            told = {"index": index, "key": task.id, "task": task, "attempts": attempts}
            try:
                value = await work(space, task)
            except NodeLost as error:
                if not idempotent(task) or attempts > retries:
                    return Outcome(state="lost", error=error, node=space.node, **told)
            except Exception as error:  # noqa: BLE001 (as the real one does)
                await space.release()
                return Outcome(state="failed", error=error, node=space.node, **told)
            else:
                await space.release()
                return Outcome(state="ok", value=value, node=space.node, **told)
