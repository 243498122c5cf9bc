"""What we want to reach, and whether a result reaches it.  Pure: figures in, sentences out.

A target compares one metric of ours with the peer's, with the floor's, or with a number.
Ratios count: they hold on any machine, while the numbers were set on one with two cores.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from report import Results, figure

OURS, PEER, FLOOR = "ours", "codex", "limits"
HOLDS = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}


class Against(Enum):
    """What a metric of ours is compared with."""

    NUMBER = "the metric itself"
    PEER = "ours / peer"
    PEER_INVERSE = "peer / ours"
    FLOOR = "ours / floor"


class Verdict(Enum):
    """How it went."""

    OK = "OK"
    MISSED = "MISSED"
    NOT_MEASURED = "--"


@dataclass(frozen=True)
class Target:
    """One line of the list."""

    workload: str
    metric: str
    against: Against
    comparison: str
    bound: float
    #: The metric of the floor, where that is what ours is compared with.
    floor: str = ""
    #: A second metric shown beside the first, without a verdict of its own.
    beside: str = ""


def spawn_targets(workload: str, floor: str) -> list[Target]:
    """Pipes and terminals have the same ones."""
    closed = "closed_p50_us"
    return [
        Target(workload, closed, Against.PEER_INVERSE, ">=", 25),
        Target(workload, closed, Against.FLOOR, "<=", 2.5, floor=floor),
        Target(workload, "per_s_64", Against.PEER, ">=", 6, beside="per_s_64_quickack"),
    ]


TARGETS = [
    *spawn_targets("spawn", "c_pipes_p50_us"),
    *spawn_targets("spawn_pty", "c_pty_p50_us"),
    Target("stream_zero", "MB_s", Against.PEER, ">=", 2.2),
    Target("stream_zero", "server_cpu_s_per_GiB", Against.PEER, "<=", 0.40),
    Target("stream_text", "MB_s", Against.PEER, ">=", 2.2),
    Target("stream_text", "server_cpu_s_per_GiB", Against.PEER, "<=", 0.40),
    Target("stream_many", "MB_s", Against.PEER, ">=", 2.0),
    Target("stream_pty", "MB_s", Against.PEER, ">=", 1.4),
    Target("chatty", "lines_s", Against.PEER, ">=", 1.0),
    Target("chatty_pty", "lines_s", Against.PEER, ">=", 1.0),
    Target("echo", "round_trip_p50_us", Against.NUMBER, "<", 500),
    Target("read_rpc", "small_read_p50_us", Against.PEER, "<=", 1.0),
    Target("read_rpc", "status_p50_us", Against.PEER, "<=", 1.0),
    Target("idle", "start_all_s", Against.NUMBER, "<", 1.5),
    Target("idle", "rss_KiB_per_process", Against.NUMBER, "<=", 40),
    Target("idle", "fds_per_process", Against.NUMBER, "<=", 12),
    Target("idle", "threads_per_process", Against.NUMBER, "<=", 0),
    Target("startup", "rss_MiB", Against.NUMBER, "<=", 60),
    Target("startup", "initialized_ms", Against.NUMBER, "<", 250),
]


def judge(results: Results) -> Iterator[tuple[Verdict, str]]:
    """Each target with what was measured, then what was not run, then what must not happen."""
    run = [target for target in TARGETS if OURS in results.get(target.workload, {})]
    for target in run:
        yield judge_target(target, results)
    rest = dict.fromkeys(target.workload for target in TARGETS if target not in run)
    if rest:
        yield Verdict.NOT_MEASURED, "not run: " + ", ".join(rest)
    yield judge_integrity(results)


def judge_target(target: Target, results: Results) -> tuple[Verdict, str]:
    """One target of a workload that was run; one that gave no figure has missed it."""
    name = f"{target.workload} {target.metric}"
    ours = results[target.workload][OURS].get(target.metric)
    if ours is None:
        return Verdict.MISSED, f"{name}: ours gave no figure"
    other, other_name = comparand(target, results)
    shown = f"{name}: ours {figure(ours)}"
    if target.against is Against.NUMBER:
        value, bound = ours, f"{target.comparison} {target.bound:g}"
    elif not other or not ours:
        return Verdict.NOT_MEASURED, f"{shown}, no figure of {other_name} to compare it with"
    else:
        shown += f", {other_name} {figure(other)}"
        inverse = target.against is Against.PEER_INVERSE
        value = other / ours if inverse else ours / other
        ratio = f"{other_name}/ours" if inverse else f"ours/{other_name}"
        bound = f"{ratio} {value:.2f} {target.comparison} {target.bound:g}"
    verdict = Verdict.OK if HOLDS[target.comparison](value, target.bound) else Verdict.MISSED
    return verdict, f"{shown} ({bound}){beside(target, results)}"


def comparand(target: Target, results: Results) -> tuple[float | None, str]:
    """The figure that ours is held against, and whose it is."""
    if target.against is Against.FLOOR:
        return results.get("limits", {}).get(FLOOR, {}).get(target.floor), target.floor
    return results.get(target.workload, {}).get(PEER, {}).get(target.metric), PEER


def beside(target: Target, results: Results) -> str:
    """The metric shown beside the one that counts."""
    ran = results.get(target.workload, {})
    ours = ran.get(OURS, {}).get(target.beside)
    peer = ran.get(PEER, {}).get(target.beside)
    if ours is None:
        return ""
    shown = f"; {target.beside}: ours {figure(ours)}"
    return f"{shown}, {PEER} {figure(peer)}, ours/{PEER} {ours / peer:.2f}" if peer else shown


def judge_integrity(results: Results) -> tuple[Verdict, str]:
    """Nothing lost, reordered, doubled or stalled in any workload of ours."""
    ran = {workload: by[OURS] for workload, by in results.items() if OURS in by}
    bad = [
        f"{workload} {key} {value}"
        for workload, metrics in ran.items()
        for key, value in metrics.items()
        if key.startswith("BAD")
    ]
    if not ran:
        return Verdict.NOT_MEASURED, "nothing BAD in any workload: none was run"
    broken = [workload for workload, metrics in ran.items() if "error" in metrics]
    found = ", ".join(bad) if bad else f"{len(ran)} looked at"
    if broken:
        found += f"; not all of these to the end: {', '.join(broken)}"
    return Verdict.MISSED if bad else Verdict.OK, f"nothing BAD in any workload: {found}"
