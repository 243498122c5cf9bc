"""The workloads by name: what to run, how often, and for how long at most."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from . import capacity, echo, files, lines, resume, rpc, spawn, stream
from .context import Context, Metrics


@dataclass(frozen=True)
class Workload:
    """One entry of the table."""

    run: Callable[[Context], Awaitable[Metrics]]
    repetitions: int
    #: Seconds per repetition, where the command line's limit is too short.
    limit: float = 0.0


WORKLOADS = {
    "spawn": Workload(spawn.spawn, 3),
    "spawn_pty": Workload(spawn.spawn_pty, 2),
    "spawn_sandboxed": Workload(spawn.spawn_sandboxed, 2),
    "stream_zero": Workload(stream.stream_zero, 3),
    "stream_text": Workload(stream.stream_text, 3),
    "stream_pty": Workload(stream.stream_pty, 2),
    "stream_many": Workload(stream.stream_many, 3),
    "chatty": Workload(lines.chatty, 3),
    "chatty_pty": Workload(lines.chatty_pty, 3),
    "order": Workload(lines.order, 2),
    "echo": Workload(echo.echo, 2),
    "echo_pty": Workload(echo.echo_pty, 2),
    "flood_echo": Workload(echo.flood_echo, 2),
    "read_rpc": Workload(rpc.read_rpc, 2),
    "pipeline": Workload(rpc.pipeline, 2),
    "output_latency": Workload(rpc.output_latency, 2),
    "head_of_line": Workload(rpc.head_of_line, 4),
    "slow_reader": Workload(capacity.slow_reader, 1),
    "idle": Workload(capacity.idle, 1),
    "retention": Workload(capacity.retention, 1),
    "churn": Workload(capacity.churn, 1, limit=capacity.CHURN_LIMIT + 60),
    "resume": Workload(resume.resume, 2),
    "fs": Workload(files.fs, 2),
    "storm": Workload(capacity.storm, 3),
}
