"""A client that loses its connection, comes back, and reads what it missed."""

from __future__ import annotations

import asyncio

from wire import Connection, RpcError, b64decode, connect, now, session

from .context import Context, Metrics, add, us

BEFORE, AWAY = 400_000, 500_000
#: Part of the output comes while nobody is connected.
SCRIPT = f"head -c {BEFORE} /dev/zero; sleep 0.25; head -c {AWAY} /dev/zero"


async def resume(ctx: Context) -> Metrics:
    """From the new connection to the last byte."""
    metrics: Metrics = {"lat.resume_1MiB": [], "retries": 0}
    for _ in range(ctx.size(8, 2)):
        c = await session(ctx.url)
        process, _ = await c.start("res", ["/bin/sh", "-c", SCRIPT])
        while process.bytes < BEFORE:
            await asyncio.sleep(0.005)
        session_id = c.session_id
        await c.close()
        await asyncio.sleep(0.5)
        begin = now()
        c = await come_back(ctx, session_id, metrics)
        got = await read_all(c)
        metrics["lat.resume_1MiB"].append(us(now() - begin))
        add(metrics, "bad.lost_bytes", BEFORE + AWAY - got)
        await c.close()
    return metrics


async def come_back(ctx: Context, session_id: str, metrics: Metrics) -> Connection:
    """Resume the session; the server may not yet have noticed that the old line is gone."""
    while True:
        c = await connect(ctx.url)
        try:
            await c.initialize(session_id)
            return c
        except RpcError:
            metrics["retries"] += 1
            await c.close()
            if metrics["retries"] > 50:
                raise
            await asyncio.sleep(0.01)


async def read_all(c: Connection) -> int:
    """Read until everything was there, or until nothing comes any more."""
    got, after = 0, 0
    while True:
        params = {"processId": "res", "afterSeq": after, "maxBytes": None, "waitMs": 200}
        result = await c.call("process/read", params)
        got += sum(len(b64decode(chunk["chunk"])) for chunk in result["chunks"])
        after = result["nextSeq"] - 1
        if result["closed"] and (not result["chunks"] or got >= BEFORE + AWAY):
            return got
