"""How long /bin/true takes from the request to ``closed``, alone and many at a time."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from wire import Connection, now, session, workspace_sandbox

from .context import Context, Metrics, add, check, us

TRUE = ["/bin/true"]
#: How many are in flight, and how many are started in all.
Lanes = tuple[tuple[int, int], ...]


async def spawn(ctx: Context) -> Metrics:
    """With pipes."""
    lanes = ctx.size(((1, 40), (8, 160), (64, 320)), ((1, 10), (8, 40), (64, 64)))
    return await measure(ctx, ctx.size(60, 20), lanes)


async def spawn_pty(ctx: Context) -> Metrics:
    """With a terminal."""
    lanes = ctx.size(((1, 30), (8, 120), (64, 256)), ((1, 10), (8, 40), (64, 64)))
    return await measure(ctx, ctx.size(50, 20), lanes, tty=True)


async def spawn_sandboxed(ctx: Context) -> Metrics:
    """In a sandbox that may write one folder, after a look whether it is one."""
    root = ctx.uri("ws")
    os.makedirs(ctx.path("ws"), exist_ok=True)
    sandbox = workspace_sandbox(root)
    metrics: Metrics = {}
    if ctx.repetition == 0:
        metrics["denial_flagged"] = await denial_flagged(ctx, sandbox, root)
    lanes = ctx.size(((1, 8), (8, 40), (64, 96)), ((1, 3), (8, 16), (64, 64)))
    metrics.update(await measure(ctx, ctx.size(15, 5), lanes, sandbox=sandbox, cwd=root))
    return metrics


async def denial_flagged(ctx: Context, sandbox: dict[str, Any], root: str) -> int:
    """Raise if the sandbox does not hold; else say whether the server names the refusal."""
    c = await session(ctx.url)
    denied = None
    for path, allowed in ((ctx.path("ws", "in"), True), (ctx.path("outside"), False)):
        name = "in" if allowed else "out"
        argv = ["/usr/bin/touch", path]
        process, _ = await c.start("v" + name, argv, sandbox=sandbox, cwd=root)
        await asyncio.wait_for(process.done, 20)
        exists = os.path.exists(path)
        if (process.exit_code == 0) != allowed or exists != allowed:
            found = f"{name} exit {process.exit_code} exists {exists}"
            raise RuntimeError(f"the sandbox does not hold: {found}")
        denied = process.sandbox_denied
    await c.close()
    return int(bool(denied))


async def measure(ctx: Context, count: int, lanes: Lanes, **start: Any) -> Metrics:
    """One after the other, then in lanes; by an ordinary client and by one that acks at once."""
    metrics: Metrics = {}
    for tag, quickack in (("", False), ("_quickack", True)):
        c = await session(ctx.url, quickack=quickack)
        for i in range(3):
            process, _ = await c.start(f"w{i}", TRUE, **start)
            await asyncio.wait_for(process.done, 20)
        await in_sequence(ctx, c, count, tag, metrics, start)
        for width, total in lanes:
            per_s = await in_lanes(c, f"c{width}-", width, total, metrics, start)
            metrics[f"per_s_{width}{tag}"] = per_s
        await c.close()
    return metrics


async def in_sequence(
    ctx: Context, c: Connection, count: int, tag: str, metrics: Metrics, start: dict[str, Any]
) -> None:
    """Latencies of single starts, and what they cost the server."""
    closed: list[float] = []
    started: list[float] = []
    metrics["lat.closed" + tag] = closed
    metrics["lat.started" + tag] = started
    own_before, waited_before = ctx.server.cpu()
    for i in range(count):
        begin = now()
        process, future = c.start_request(f"s{i}", TRUE, **start)
        _, answered = await future
        ended = await asyncio.wait_for(process.done, 20)
        started.append(us(answered - begin))
        closed.append(us(ended - begin))
        finish(c, process, metrics)
    own, waited = ctx.server.cpu()
    metrics["cpu_ms_server"] = (own - own_before) * 1e3 / count
    metrics["cpu_ms_children"] = (waited - waited_before) * 1e3 / count


async def in_lanes(
    c: Connection,
    prefix: str,
    width: int,
    total: int,
    metrics: Metrics,
    start: dict[str, Any],
    limit: float = 60,
) -> float:
    """Start and end ``total`` processes, ``width`` at a time; gives processes per second."""
    issued = 0

    async def lane() -> None:
        nonlocal issued
        while issued < total:
            issued += 1
            process, future = c.start_request(f"{prefix}{issued}", TRUE, **start)
            await future
            await process.done
            finish(c, process, metrics)

    begin = now()
    await asyncio.wait_for(asyncio.gather(*(lane() for _ in range(width))), limit)
    return total / (now() - begin)


def finish(c: Connection, process: Any, metrics: Metrics) -> None:
    """Look a finished process over and let it go."""
    if process.exit_code != 0:
        add(metrics, "bad.exit", 1)
    check(metrics, process, 0)
    c.forget(process.pid)
