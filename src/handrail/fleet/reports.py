"""Reports of a fleet: its nodes, its workspaces, the outcomes of tasks.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from handrail.fleet.errors import FleetError, NodeLost, NodeUnreachable

NodeState = Literal[
    "pending", "joining", "ready", "unreachable", "lost", "gone", "failed", "mismatch"
]
WorkspaceState = Literal["ready", "unreachable", "released", "expired", "lost"]
FleetState = Literal["starting", "up", "degraded", "stopping"]
OutcomeState = Literal["ok", "failed", "lost"]

#: States from which a node does not come back.
ENDED_NODES = frozenset({"lost", "gone", "failed", "mismatch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node of a fleet; amounts are those of its share, memory and disk in bytes.

    ``engine_id`` is Ray's id of the machine; ``pools`` counts ready workspaces by the digest of
    their template.
    """

    id: str
    state: NodeState
    url: str = ""
    engine_id: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    version: str = ""
    cpus: float = 0.0
    memory: int = 0
    free_cpus: float = 0.0
    free_memory: int = 0
    free_disk: int = 0
    workspaces: int = 0
    pools: dict[str, int] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    server_pid: int | None = None
    keeper_pid: int | None = None
    supervisor_pid: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """A fleet as a whole; ``workspaces`` counts those of all owners."""

    name: str
    state: FleetState
    nodes: list[NodeInfo]
    workspaces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceInfo:
    """One workspace of a fleet; ``held``: its owner is connected.

    ``running`` counts its processes that run, ``processes`` all that are known.
    """

    id: str
    node: str
    owner: str
    tenant: str
    labels: dict[str, str]
    template: str | None
    state: WorkspaceState
    held: bool
    running: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one task of ``map``; ``duration`` is that of the last attempt, in seconds."""

    index: int
    key: str | None
    task: Any
    state: OutcomeState
    value: Any = None
    error: BaseException | None = None
    attempts: int = 1
    node: str | None = None
    duration: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether ``work`` returned."""
        return self.state == "ok"

    @property
    def infra(self) -> bool:
        """Whether the fleet is to blame, not the task."""
        return self.state == "lost" or isinstance(
            self.error, FleetError | NodeLost | NodeUnreachable
        )
