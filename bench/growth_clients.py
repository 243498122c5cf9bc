"""One server with many clients: what each costs, and whether those that stream share it fairly."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from typing import Any

import uvloop
import wire
from proc import Server
from report import percentile

CLIENTS = 1000
STREAMS = 200
SECONDS = 6.0
#: The first part of the time is not counted: processes are still starting.
WARM_UP = 2.0
#: A server that takes longer has stalled.
LIMIT = 60.0


async def clients(server: Server, count: int = CLIENTS) -> dict[str, Any]:
    """So many connected clients, each with a session."""
    server.launch()
    try:
        server.wait_port()
        first = await wire.session(server.url, quickack=True)
        before = server.rss()
        began = wire.now()
        connected = []
        for _ in range(0, count, 50):
            connected += await asyncio.gather(*(wire.session(server.url) for _ in range(50)))
        took = wire.now() - began
        small = await requests(first, 500)
        found = {
            "clients": len(connected),
            "connect_ms_each": took * 1e3 / count,
            "client_KiB_each": (server.rss() - before) / 1024 / count,
            "clients_request_p50_ms": percentile(small, 0.5),
            "clients_request_p99_ms": percentile(small, 0.99),
        }
        for one in (first, *connected):
            await one.close()
    finally:
        server.stop()
    return found


async def streams(server: Server, count: int = STREAMS) -> dict[str, Any]:
    """So many clients that read an endless stream each, in a program of their own."""
    server.launch()
    try:
        server.wait_port()
        c = await wire.session(server.url, quickack=True)
        reader = await asyncio.create_subprocess_exec(
            sys.executable, __file__, server.url, str(count), stdout=asyncio.subprocess.PIPE
        )
        try:
            return await asyncio.wait_for(beside_streams(c, reader), LIMIT)
        except Exception as e:
            reader.kill()
            return {"streams_error": f"{type(e).__name__}: {e}"[:80] or "stalled"}
    finally:
        server.stop()


async def beside_streams(c: wire.Connection, reader: asyncio.subprocess.Process) -> dict[str, Any]:
    """Small requests of one client, while the reader's clients stream."""
    await reader.stdout.readline()  # all of them have started
    await asyncio.sleep(WARM_UP)
    small = []
    end = wire.now() + SECONDS - WARM_UP - 1
    while wire.now() < end:
        small += await requests(c, 1)
        await asyncio.sleep(0.005)
    said = json.loads((await reader.communicate())[0])
    await c.close()
    return {
        **said,
        "streams_request_p50_ms": percentile(small, 0.5),
        "streams_request_p99_ms": percentile(small, 0.99),
    }


async def requests(c: wire.Connection, count: int) -> list[float]:
    """Milliseconds of small requests, one after another."""
    times = []
    for _ in range(count):
        began = wire.now()
        await c.call("environment/status", {})
        times.append((wire.now() - began) * 1e3)
    return times


async def read_streams(url: str, count: int) -> None:
    """Be all the clients, and say what each of them got."""
    got = [0] * count
    last = [0.0] * count
    gaps = [0.0] * count

    def hook(i: int) -> wire.Hook:
        def arrived(process: wire.Process, data: bytes, begin: int, end: int) -> None:
            now = wire.now()
            got[i] += end - begin
            gaps[i] = max(gaps[i], now - last[i])
            last[i] = now

        return arrived

    connected = []
    for i in range(count):
        c = await wire.session(url)
        await c.start("s", ["/bin/cat", "/dev/zero"], hook=hook(i))
        connected.append(c)
    print("started", flush=True)
    await asyncio.sleep(WARM_UP)
    got[:] = [0] * count
    gaps[:] = [0.0] * count
    last[:] = [wire.now()] * count
    await asyncio.sleep(SECONDS - WARM_UP)
    now = wire.now()
    longest = max(max(gap, now - seen) for gap, seen in zip(gaps, last, strict=True))
    said = {
        "streams": count,
        "streams_MB_s": sum(got) * 0.75 / (SECONDS - WARM_UP) / 1e6,
        "streams_most_to_least": max(got) / max(1, min(got)),
        "streams_most_to_median": max(got) / max(1.0, statistics.median(got)),
        "streams_longest_gap_ms": longest * 1e3,
    }
    for c in connected:
        await c.close()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    uvloop.run(read_streams(sys.argv[1], int(sys.argv[2])))
