"""Which nodes to ask for a workspace, in which order.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from handrail.fleet.settings import Amounts

if TYPE_CHECKING:
    from handrail.fleet.node import Node


def matches(node: Node, on: Mapping[str, str]) -> bool:
    """Whether a node has all of these labels."""
    labels = node.member.labels
    return all(labels.get(name) == value for name, value in on.items())


def ordered(
    nodes: Iterable[Node], amounts: Amounts, template: str | None, near: str | None
) -> list[Node]:
    """Nodes in the order in which they are asked.

    Near ones first, then those with the template and with one of its warm workspaces, then the
    least loaded; those that look full come last, for what this driver knows may be old.
    """

    def rank(node: Node) -> tuple[object, ...]:
        facts = node.facts
        has = template is None or (facts is not None and template in facts.templates)
        warm = template is not None and facts is not None and facts.pools.get(template, 0) > 0
        return (not fits(node, amounts), node.id != near, not has, not warm, load(node), node.id)

    return sorted(nodes, key=rank)


def fits(node: Node, wanted: Amounts) -> bool:
    """Whether it seems to have room."""
    free = node.free
    return (
        free.cpu_millis >= wanted.cpu_millis
        and free.memory_bytes >= wanted.memory_bytes
        and free.workspaces >= wanted.workspaces
    )


def load(node: Node) -> float:
    """How full a node is: of its most wanted resource, then of all."""
    total, free = node.total, node.free
    if total is None:
        return 0.0
    used = [
        1.0 - left / whole
        for left, whole in (
            (free.cpu_millis, total.cpu_millis),
            (free.memory_bytes, total.memory_bytes),
            (free.workspaces, total.workspaces),
        )
        if whole > 0
    ]
    return round(max(used, default=0.0), 9) + sum(used) * 1e-6


def never(nodes: Iterable[Node], wanted: Amounts) -> dict[str, str] | None:
    """Why no node can ever hold this, by node; None: one can, or is not known well enough."""
    refusals: dict[str, str] = {}
    for node in nodes:
        total = node.total
        if total is None:
            return None
        missing = [
            what
            for what, asked, there in (
                ("cpus", wanted.cpu_millis, total.cpu_millis),
                ("memory", wanted.memory_bytes, total.memory_bytes),
                ("workspaces", wanted.workspaces, total.workspaces),
            )
            if asked > there
        ]
        if not missing:
            return None
        refusals[node.id] = ",".join(missing)
    return refusals or None


def reasons(refusals: Mapping[str, str]) -> str:
    """The reasons of all refusals, each once, in the order of their importance."""
    said = {word for text in refusals.values() for word in text.split(",") if word}
    order = ("cpus", "memory", "disk", "workspaces", "nodes", "version")
    return ",".join(word for word in order if word in said) or "nodes"


def have(nodes: Iterable[Node], template: str | None) -> bool:
    """Whether one of these nodes has the template."""
    return any(node.facts is not None and template in node.facts.templates for node in nodes)


def wanted(amounts: Amounts) -> str:
    """The amounts in a message."""
    return f"{amounts.cpu_millis / 1000:g} cpus, {amounts.memory_bytes} bytes of memory"


def told(refusals: Mapping[str, str]) -> str:
    """Refusals by node in a message: the first ones, and how many more there are."""
    shown = [f"{node}: {what}" for node, what in list(refusals.items())[:5]]
    more = f" and {len(refusals) - 5} more" if len(refusals) > 5 else ""
    return "; ".join(shown) + more
