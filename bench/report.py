"""From repetitions to one figure each, and from figures to tables."""

from __future__ import annotations

import statistics
from typing import Any

#: Workload -> server -> metric -> figure.
Results = dict[str, dict[str, dict[str, Any]]]


def percentile(values: list[float], q: float) -> float:
    """The value that a share ``q`` of all lies below."""
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * q))]


def merge(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Repetitions of one workload on one server -> one flat dict.

    Latencies are pooled, counts of what must not happen are added up, of errors the first
    counts, and of everything else the median.
    """
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for metrics in repetitions for key in metrics):
        values = [metrics[key] for metrics in repetitions if key in metrics]
        kind, _, name = key.partition(".")
        if kind == "lat":
            merged.update(latencies(name, [x for value in values for x in value]))
            middles = [round(percentile(value, 0.5), 1) for value in values if value]
            if len(middles) > 1:
                merged.setdefault("_spread", {})[f"{name}_p50_us"] = [min(middles), max(middles)]
        elif kind == "bad":
            if any(values):
                merged["BAD " + name] = sum(values)
        elif key.startswith("error"):
            merged[key] = values[0]
        else:
            middle = statistics.median(values)
            merged[key] = round(middle, 4) if isinstance(middle, float) else middle
            if len(values) > 1 and isinstance(values[0], float):
                spread = [round(min(values), 4), round(max(values), 4)]
                merged.setdefault("_spread", {})[key] = spread
    return merged


def latencies(name: str, pool: list[float]) -> dict[str, Any]:
    """What is said of a pool of latencies."""
    if not pool:
        return {}
    return {
        f"{name}_p50_us": round(percentile(pool, 0.5), 1),
        f"{name}_p99_us": round(percentile(pool, 0.99), 1),
        f"{name}_n": len(pool),
    }


def render(results: Results) -> str:
    """Markdown tables; with several servers, a ratio column against the first."""
    return "\n".join(line for name in results for line in table(name, results[name]))


def table(workload: str, by_server: dict[str, dict[str, Any]]) -> list[str]:
    """The table of one workload."""
    first, *others = by_server
    keys = dict.fromkeys(key for metrics in by_server.values() for key in metrics)
    header = ["metric", first, *others, *(f"{name}/{first}" for name in others)]
    lines = [
        f"\n### {workload}\n",
        "| " + " | ".join(header) + " |",
        "|---|" + "---:|" * (len(header) - 1),
    ]
    for key in keys:
        if key.startswith("_") or key.endswith("_n"):
            continue
        values = [metrics.get(key) for metrics in by_server.values()]
        cells = [key, *map(figure, values), *(ratio(value, values[0]) for value in values[1:])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def figure(value: Any) -> str:
    """One cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1000 else f"{value:.0f}"
    return str(value)


def ratio(value: Any, base: Any) -> str:
    """One cell of a ratio column."""
    if isinstance(value, (int, float)) and isinstance(base, (int, float)) and base:
        return f"{value / base:.2f}"
    return ""
