"""Workspaces on many machines: ``Fleet`` on a Ray cluster or a list of hosts.

fleet, workspace, synchronous      what a program uses
placing, node_choice, node_set     which node gets a workspace; the nodes that are known
node, data_line                    the lines to a node and to a workspace
ray_engine, actors, hosts_engine   members by Ray (registrar and supervisors), or by a list
task_map, tasks/                   many tasks; a file of them, each run once
shares/                            the server of a share, quotas, membership
"""

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
