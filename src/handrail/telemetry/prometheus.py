"""The registry as Prometheus text, format 0.0.4.

A pure function over ``metrics``; the server decides which clients may read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from handrail.telemetry.metrics import AnyFamily, Histogram, Registry
from handrail.telemetry.names import WORKSPACE_TENANT

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(registry: Registry, tenant: str | None = None) -> bytes:
    """Every family, in the order of ``names``; a family without series shows its help.

    ``tenant``: of the series of tenants only this one's are shown.
    """
    lines = [line for family in registry.families for line in _family(family, tenant)]
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def _family(family: AnyFamily, tenant: str | None) -> Iterator[str]:
    metric = family.metric
    yield f"# HELP {metric.name} {_escape_help(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind.value}"
    label_names = [label.name for label in metric.labels]
    own = metric.labels.index(WORKSPACE_TENANT) if WORKSPACE_TENANT in metric.labels else None
    for values, cell in family.series().items():
        if own is not None and tenant not in (None, values[own]):
            continue
        pairs = [
            f'{name}="{escape_label(value)}"'
            for name, value in zip(label_names, values, strict=True)
        ]
        if isinstance(cell, Histogram):
            yield from _histogram(metric.name, pairs, cell)
        else:
            yield _sample(metric.name, pairs, cell.value)


def _histogram(name: str, pairs: list[str], cell: Histogram) -> Iterator[str]:
    # One copy, so that the buckets and the count cannot contradict each other.
    counts = list(cell.counts)
    below = 0
    for bound, count in zip((*cell.bounds, float("inf")), counts, strict=True):
        below += count
        yield _sample(f"{name}_bucket", [*pairs, f'le="{_number(bound)}"'], below)
    yield _sample(f"{name}_sum", pairs, cell.sum)
    yield _sample(f"{name}_count", pairs, below)


def _sample(name: str, pairs: list[str], value: float) -> str:
    labels = "{" + ",".join(pairs) + "}" if pairs else ""
    return f"{name}{labels} {_number(value)}"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def escape_label(value: str) -> str:
    """A label value between its quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
