"""Output in many small writes: how many lines arrive, and in what order."""

from __future__ import annotations

import asyncio

from wire import now, session

from .context import Context, Metrics, check


async def chatty(ctx: Context) -> Metrics:
    """Each line is a write of its own, into a pipe."""
    return await measure(ctx, tty=False)


async def chatty_pty(ctx: Context) -> Metrics:
    """The same into a terminal."""
    return await measure(ctx, tty=True)


async def measure(ctx: Context, tty: bool) -> Metrics:
    """Run one process that writes line by line."""
    count = ctx.size(100_000, 10_000)
    code = f"import os\nw=os.write\nfor i in range({count}): w(1,b'line %06d\\n'%i)\n"
    c = await session(ctx.url)
    cpu_before, _ = ctx.server.cpu()
    begin = now()
    process, future = c.start_request("chat", [ctx.python, "-S", "-E", "-c", code], tty=tty)
    await future
    seconds = await asyncio.wait_for(process.done, 90) - begin
    cpu, _ = ctx.server.cpu()
    metrics: Metrics = {
        "lines_s": count / seconds,
        "frames": process.frames,
        "frames_s": process.frames / seconds,
        "lines_per_frame": count / max(1, process.frames),
        "server_cpu_us_per_line": (cpu - cpu_before) * 1e6 / count,
        "seconds": seconds,
    }
    check(metrics, process, count * (13 if tty else 12))
    await c.close()
    return metrics


async def order(ctx: Context) -> Metrics:
    """Both streams at once, in many short processes."""
    count, each = ctx.size(100, 20), 40
    code = f"for i in $(seq {each}); do echo out; echo err >&2; done"
    c = await session(ctx.url)
    metrics: Metrics = {}
    width = asyncio.Semaphore(8)
    reordered = 0

    async def one(i: int) -> None:
        nonlocal reordered
        async with width:
            process, future = c.start_request(f"o{i}", ["/bin/sh", "-c", code])
            await future
            await asyncio.wait_for(process.done, 30)
            check(metrics, process, each * 8)
            reordered += process.reordered > 0

    await asyncio.gather(*(one(i) for i in range(count)))
    metrics["processes_with_reordering"] = reordered
    await c.close()
    return metrics
