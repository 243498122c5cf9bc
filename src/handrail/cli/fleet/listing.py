"""Prints nodes and workspaces of a fleet, as tables or JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from handrail.cli import options, text_table
from handrail.cli.stdio import say
from handrail.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from handrail.fleet import FleetStatus, NodeInfo, WorkspaceInfo

_STYLES = {
    **text_table.STATES,
    "ready": "green",
    "up": "green",
    "joining": "cyan",
    "pending": "cyan",
    "degraded": "yellow",
    "failed": "red",
    "mismatch": "red",
    "gone": "dim",
}


def show_status(status: FleetStatus, *, as_json: bool) -> None:
    """Print a fleet and its nodes."""
    if as_json:
        options.print_json(camel_case(status))
        return
    ready = sum(node.state == "ready" for node in status.nodes)
    print(
        f"fleet {status.name or '(hosts)'} is {status.state}: {ready} of"
        f" {counted(len(status.nodes), 'node')} ready, {counted(status.workspaces, 'workspace')}"
    )
    columns = ("NODE", "STATE", "CPUS", "MEMORY", "DISK", "WORKSPACES", "VERSION", "LABELS", "URL")
    text_table.show(columns, [_node(node) for node in status.nodes], _STYLES)
    for node in status.nodes:
        if node.error:
            say(f"handrail: {node.id}: {node.error}")


def _node(node: NodeInfo) -> tuple[object, ...]:
    return (
        node.id,
        node.state,
        f"{node.free_cpus:g}/{node.cpus:g}",
        f"{text_table.size(node.free_memory)}/{text_table.size(node.memory)}",
        text_table.size(node.free_disk),
        node.workspaces,
        node.version or "-",
        _labels(node.labels),
        node.url or "-",
    )


def show_workspaces(found: Iterable[WorkspaceInfo], *, as_json: bool) -> None:
    """Print workspaces; as JSON one a line."""
    if as_json:
        for one in found:
            options.print_json(camel_case(one))
        return
    columns = ("ID", "NODE", "STATE", "HELD", "RUNNING", "OWNER", "TENANT", "LABELS")
    rows = [
        (
            one.id,
            one.node,
            one.state,
            "yes" if one.held else "no",
            f"{one.running}/{one.processes}",
            one.owner,
            one.tenant,
            _labels(one.labels),
        )
        for one in found
    ]
    text_table.show(columns, rows, _STYLES)


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items()) or "-"


def camel_case(report: Any) -> Any:
    """A report as JSON: names of members in camelCase, those of labels and digests as they are."""
    if dataclasses.is_dataclass(report):
        return {
            _camel(field.name): camel_case(getattr(report, field.name))
            for field in dataclasses.fields(report)
        }
    if isinstance(report, list | tuple):
        return [camel_case(one) for one in report]
    return report


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
