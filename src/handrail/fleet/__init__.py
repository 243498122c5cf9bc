"""Workspaces on many machines: ``Fleet`` on a Ray cluster or a list of hosts."""

from handrail.fleet.errors import (
    FleetError,
    FleetUnknown,
    NoCapacity,
    NodeLost,
    NodeUnreachable,
    QuotaExceeded,
    TemplateError,
    VersionMismatch,
    WorkspaceGone,
)
from handrail.fleet.fleet import Fleet
from handrail.fleet.reports import FleetStatus, NodeInfo, Outcome, WorkspaceInfo
from handrail.fleet.synchronous import SyncFleet, SyncFleetWorkspace
from handrail.fleet.workspace import FleetWorkspace

__all__ = [
    "Fleet",
    "FleetError",
    "FleetStatus",
    "FleetUnknown",
    "FleetWorkspace",
    "NoCapacity",
    "NodeInfo",
    "NodeLost",
    "NodeUnreachable",
    "Outcome",
    "QuotaExceeded",
    "SyncFleet",
    "SyncFleetWorkspace",
    "TemplateError",
    "VersionMismatch",
    "WorkspaceGone",
    "WorkspaceInfo",
]
