"""The nodes of a fleet as one driver sees them: told by the engine, waited for, asked together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, ValuesView
from typing import TYPE_CHECKING

from handrail.errors import HandrailError, UsageError
from handrail.fleet.engine import Engine, Member
from handrail.fleet.errors import (
    FleetError,
    FleetUnknown,
    NoCapacity,
    NodeLost,
    NodeUnreachable,
    VersionMismatch,
)
from handrail.fleet.node import PATIENCE, Node
from handrail.fleet.reports import ENDED_NODES, FleetState, NodeInfo, WorkspaceInfo
from handrail.fleet.settings import LineSettings
from handrail.version import __version__

if TYPE_CHECKING:
    from handrail.protocol.workspace import WorkspaceEntry


class NodeSet:
    """All nodes, by their ids."""

    def __init__(self, engine: Engine, settings: LineSettings) -> None:
        self._engine = engine
        self._settings = settings
        self.by_id: dict[str, Node] = {}
        self._news = asyncio.Event()
        #: Called when anything has changed.
        self.on_change: Callable[[], None] = lambda: None

    def told(self, members: list[Member]) -> None:
        """Take the members that the engine reports."""
        for member in members:
            node = self.by_id.get(member.id)
            if node is None:
                node = Node(member, self._engine, self._settings, self.changed)
                self.by_id[member.id] = node
            node.told(member)
        self.changed()

    def changed(self) -> None:
        """Wake what waits for a node."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        self.on_change()

    def all(self) -> ValuesView[Node]:
        return self.by_id.values()

    def find(self, name: str) -> Node:
        """A node by its id; raises UsageError."""
        node = self.by_id.get(name)
        if node is None:
            raise UsageError(f"the fleet has no node {name!r}; see Fleet.status")
        return node

    def ready(self) -> list[Node]:
        return [node for node in self.all() if node.state == "ready"]

    # --- waiting -------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait for the lines to the nodes that are there; raises VersionMismatch and FleetError.

        A host that has not said no may be slow, and has the time of a request; one that has is not
        waited for, and neither is a slow node of Ray: others may join later.
        """
        hosts = self._engine.silence_is_loss
        there = [node for node in self.all() if node.member.state == "ready"]
        limit = self._settings.request_timeout
        first = min(PATIENCE, limit)
        await asyncio.gather(*(node.settled(first) for node in there))
        slow = [node for node in there if hosts and not node.error]
        await asyncio.gather(*(node.settled(limit - first) for node in slow))
        for node in self.all() if hosts else ():
            if node.state == "mismatch":
                raise VersionMismatch(node.id, __version__, node.theirs)
            if node.state == "failed":
                raise FleetError(f"host {node.id}: {node.error}")

    async def wait(self, count: int, timeout: float) -> None:
        """Wait until so many are ready.

        Raises NoCapacity, VersionMismatch when all are, and FleetUnknown when the fleet ends.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            news = self._news
            ready = len(self.ready())
            if ready >= count:
                return
            if self._engine.stopping:
                raise FleetUnknown(f"the fleet {self._engine.name} has ended, or is about to")
            left = deadline - loop.time()
            if left <= 0:
                raise self._too_few(ready, count, timeout)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await news.wait()

    def _too_few(self, ready: int, count: int, timeout: float) -> FleetError:
        others = [node for node in self.all() if node.state != "ready"]
        odd = [node for node in others if node.state == "mismatch"]
        if odd and not ready:
            return VersionMismatch(odd[0].id, __version__, odd[0].theirs)
        why = "".join(
            f"; {one.id} is {one.state}{f' ({one.error})' if one.error else ''}" for one in others
        )
        return NoCapacity(
            f"{ready} of {count} nodes are ready after {timeout:g} s{why}",
            reason="version" if odd else "nodes",
            refusals={one.id: one.state for one in others},
        )

    async def settled(self) -> list[Node]:
        """The nodes that answer; one whose line has just ended is waited for."""
        nodes = [node for node in self.all() if node.state not in ENDED_NODES]
        waits = (node.settled(PATIENCE if node.member.state == "ready" else 0.0) for node in nodes)
        settled = await asyncio.gather(*waits)
        return [node for node, ready in zip(nodes, settled, strict=True) if ready]

    # --- asking ----------------------------------------------------------------------------------

    async def infos(self) -> list[NodeInfo]:
        """What is known of all nodes, asked now where they answer."""

        async def one(node: Node) -> None:
            with contextlib.suppress(HandrailError):
                await node.refresh()

        await asyncio.gather(*(one(node) for node in await self.settled()))
        return [node.info() for node in self.all()]

    def state(self) -> FleetState:
        """How the fleet does."""
        states = {node.state for node in self.all()}
        if "ready" not in states:
            return "degraded" if states & {"unreachable", *ENDED_NODES} else "starting"
        return "degraded" if states & {"unreachable", "lost", "failed", "mismatch"} else "up"

    async def workspaces(
        self, owner: str | None = None, labels: dict[str, str] | None = None
    ) -> list[WorkspaceInfo]:
        """The workspaces of the nodes that answer."""

        async def one(node: Node) -> list[WorkspaceInfo]:
            try:
                found = await node.list(owner, labels)
            except (NodeLost, NodeUnreachable):
                return []
            return [_info(node, entry) for entry in found.workspaces]

        lists = await asyncio.gather(*(one(node) for node in await self.settled()))
        return [entry for found in lists for entry in found]

    async def close(self) -> None:
        """Close all lines."""
        await asyncio.gather(*(node.close() for node in self.all()))


def _info(node: Node, entry: WorkspaceEntry) -> WorkspaceInfo:
    return WorkspaceInfo(
        id=entry.workspace_id,
        node=node.id,
        owner=entry.owner,
        tenant=entry.tenant,
        labels=dict(entry.labels),
        template=entry.template,
        state="ready",
        held=entry.held,
        running=entry.running,
        processes=entry.processes,
    )
