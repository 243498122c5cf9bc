"""Calls and answers: small ones, big ones, many at once, and one behind another."""

from __future__ import annotations

import asyncio
import time

from wire import b64decode, now, session

from .context import MIB, Context, Metrics, us


async def read_rpc(ctx: Context) -> Metrics:
    """Reading all that is retained of 1 MiB, reading nothing, asking for the status."""
    c = await session(ctx.url)
    process, _ = await c.start("mib", ["/usr/bin/head", "-c", str(MIB), "/dev/zero"])
    await asyncio.wait_for(process.done, 20)
    metrics: Metrics = {"lat.big_read": [], "lat.small_read": [], "lat.status": []}
    count = ctx.size(60, 10)
    everything = {"processId": "mib", "afterSeq": None, "maxBytes": None, "waitMs": 0}
    result, size = {}, 0
    for _ in range(count):
        begin = now()
        answer = c.request("process/read", everything)
        result, answered = await asyncio.wait_for(answer, 20)
        metrics["lat.big_read"].append(us(answered - begin))
        size = sum(len(b64decode(chunk["chunk"])) for chunk in result["chunks"])
    total = sum(metrics["lat.big_read"])
    metrics["big_reads_s"] = count / (total / 1e6)
    metrics["big_read_MB_s"] = count * size / total
    metrics["retained_bytes"] = size
    metrics["chunks"] = len(result["chunks"])
    last = result["nextSeq"]
    nothing = {"processId": "mib", "afterSeq": last, "maxBytes": 65536, "waitMs": 0}
    for _ in range(ctx.size(300, 50)):
        begin = now()
        _, answered = await c.request("process/read", nothing)
        metrics["lat.small_read"].append(us(answered - begin))
        begin = now()
        _, answered = await c.request("environment/status", {})
        metrics["lat.status"].append(us(answered - begin))
    await c.close()
    return metrics


async def pipeline(ctx: Context) -> Metrics:
    """A client that sends many requests before it waits for the first answer."""
    metrics: Metrics = {}
    for burst in (64, 256, 1000, 3000):
        c = await session(ctx.url)
        begin = now()
        answers = [c.request("environment/status", {}) for _ in range(burst)]
        try:
            await asyncio.wait_for(asyncio.gather(*answers), 6)
            metrics[f"requests_s_burst_{burst}"] = burst / (now() - begin)
        except TimeoutError:
            metrics[f"bad.stalled_burst_{burst}"] = 1
            open_ = sum(1 for f in c.pending.values() if not f.done() or f.cancelled())
            metrics[f"answered_of_{burst}"] = burst - open_
        await c.close()
    return metrics


async def output_latency(ctx: Context) -> Metrics:
    """The child prints its clock; how old is it on arrival, pushed and by long poll?"""
    count = ctx.size(150, 30)
    code = (
        f"import os,time\nfor i in range({count}):\n"
        " time.sleep(.004)\n os.write(1,b'%d\\n'%time.monotonic_ns())\n"
    )
    argv = [ctx.python, "-S", "-E", "-c", code]
    c = await session(ctx.url)
    metrics: Metrics = {"lat.push": [], "lat.long_poll": []}

    def ages(output: bytes, at: int) -> list[float]:
        return [(at - int(stamp)) / 1e3 for stamp in output.split()]

    process, _ = await c.start(
        "push",
        argv,
        hook=lambda _p, b, i, j: metrics["lat.push"].extend(
            ages(b64decode(b[i:j]), time.monotonic_ns())
        ),
    )
    await asyncio.wait_for(process.done, 30)
    await c.start("poll", argv)
    after, closed = 0, False
    while not closed:
        params = {"processId": "poll", "afterSeq": after, "maxBytes": 65536, "waitMs": 2000}
        result, _ = await asyncio.wait_for(c.request("process/read", params), 10)
        at = time.monotonic_ns()
        for chunk in result["chunks"]:
            metrics["lat.long_poll"] += ages(b64decode(chunk["chunk"]), at)
        after = max(after, result["nextSeq"] - 1)
        closed = result["closed"]
    await c.close()
    return metrics


async def head_of_line(ctx: Context) -> Metrics:
    """A pending long poll, and other requests behind it on the same connection."""
    c = await session(ctx.url)
    metrics: Metrics = {"lat.status_during_long_poll": [], "lat.terminate_during_long_poll": []}
    for i in range(ctx.size(50, 5)):
        process, _ = await c.start(f"sl{i}", ["/bin/sleep", "30"])
        poll = {"processId": process.pid, "afterSeq": 0, "maxBytes": 1, "waitMs": 10_000}
        waiting = c.request("process/read", poll)
        await asyncio.sleep(0.02)
        for _ in range(4):
            begin = now()
            _, answered = await asyncio.wait_for(c.request("environment/status", {}), 10)
            metrics["lat.status_during_long_poll"].append(us(answered - begin))
        begin = now()
        terminated = c.request("process/terminate", {"processId": process.pid})
        closed = await asyncio.wait_for(process.done, 10)
        metrics["lat.terminate_during_long_poll"].append(us(closed - begin))
        await terminated
        await waiting
    await c.close()
    return metrics
