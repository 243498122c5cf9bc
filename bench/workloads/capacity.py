"""Many processes or many clients: what each costs while it is there and after it is gone."""

from __future__ import annotations

import asyncio

from wire import Connection, Process, RpcError, now, session

from .context import MIB, Context, Metrics, add, check, us
from .spawn import in_lanes

UNKNOWN_METHOD = -32601
#: Seconds for 10,000 starts: a server that manages 50 per second still finishes.
CHURN_LIMIT = 240.0


async def idle(ctx: Context) -> Metrics:
    """Processes that do nothing: started, left alone, terminated."""
    count = ctx.size(500, 50)
    c = await session(ctx.url)
    await asyncio.sleep(0.2)
    rss_before = ctx.server.rss()
    fds_before, threads_before = ctx.server.fds_threads()
    begin = now()
    processes = await start_sleepers(c, count)
    metrics: Metrics = {"start_all_s": now() - begin}
    await asyncio.sleep(0.5)
    rss = ctx.server.rss()
    fds, threads = ctx.server.fds_threads()
    cpu_before, _ = ctx.server.cpu()
    await asyncio.sleep(1.0)
    cpu, _ = ctx.server.cpu()
    metrics["rss_KiB_per_process"] = (rss - rss_before) / 1024 / count
    metrics["fds_per_process"] = (fds - fds_before) / count
    metrics["threads_per_process"] = (threads - threads_before) / count
    metrics["threads_total"] = threads
    metrics["idle_cpu_pct"] = (cpu - cpu_before) * 100
    metrics.update(await terminate_all(c, processes))
    for process in processes:
        check(metrics, process, 0)
    await asyncio.sleep(0.3)
    metrics["fds_left"] = ctx.server.fds_threads()[0] - fds_before
    metrics["rss_left_KiB_per_process"] = (ctx.server.rss() - rss_before) / 1024 / count
    await c.close()
    return metrics


async def start_sleepers(c: Connection, count: int) -> list[Process]:
    """Start processes that sleep, 64 at a time."""
    width = asyncio.Semaphore(64)
    processes: list[Process] = []

    async def one(i: int) -> None:
        async with width:
            process, future = c.start_request(f"i{i}", ["/bin/sleep", "600"])
            await asyncio.wait_for(future, 60)
            processes.append(process)

    await asyncio.gather(*(one(i) for i in range(count)))
    return processes


async def terminate_all(c: Connection, processes: list[Process]) -> Metrics:
    """Terminate them in a window of 64: an unbounded burst can stall a server (see pipeline)."""
    width = asyncio.Semaphore(64)

    async def end(process: Process) -> None:
        async with width:
            answer = c.request("process/terminate", {"processId": process.pid})
            await asyncio.wait_for(answer, 30)

    begin = now()
    await asyncio.wait_for(asyncio.gather(*(end(p) for p in processes)), 60)
    metrics: Metrics = {"terminate_replies_s": now() - begin}
    await asyncio.wait_for(asyncio.gather(*(p.done for p in processes)), 60)
    metrics["terminate_all_s"] = now() - begin
    return metrics


async def churn(ctx: Context) -> Metrics:
    """Many processes through one session, which then ends: is anything of them left?"""
    count = ctx.size(10_000, 500)
    c = await session(ctx.url)
    await asyncio.sleep(0.2)
    rss_before = ctx.server.rss()
    fds_before, _ = ctx.server.fds_threads()
    metrics: Metrics = {}
    metrics["per_s"] = await in_lanes(c, "n", 64, count, metrics, {}, limit=CHURN_LIMIT)
    metrics["session_close"] = int(await end_session(c))
    await asyncio.sleep(1.0)
    rss = ctx.server.rss()
    metrics["rss_before_MiB"] = rss_before / MIB
    metrics["rss_after_MiB"] = rss / MIB
    metrics["rss_left_KiB_per_process"] = (rss - rss_before) / 1024 / count
    metrics["fds_before"] = fds_before
    metrics["fds_after"] = ctx.server.fds_threads()[0]
    metrics["zombies"] = ctx.server.zombies()
    return metrics


async def end_session(c: Connection) -> bool:
    """End the session by its own method where the server has one, else by leaving."""
    try:
        await c.call("session/close", {})
        closed = True
    except ConnectionError:  # it may close the line before its answer is read
        return True
    except RpcError as error:
        if error.args[0]["code"] != UNKNOWN_METHOD:
            raise
        closed = False
    if not c.closed.done():
        await c.close()
    return closed


async def retention(ctx: Context) -> Metrics:
    """What is held of processes that have ended after 1 MiB of output each."""
    count = ctx.size(100, 20)
    c = await session(ctx.url)
    await asyncio.sleep(0.1)
    rss_before = ctx.server.rss()
    width = asyncio.Semaphore(4)

    async def one(i: int) -> None:
        async with width:
            argv = ["/usr/bin/head", "-c", str(MIB), "/dev/zero"]
            process, future = c.start_request(f"r{i}", argv)
            await future
            await asyncio.wait_for(process.done, 30)

    await asyncio.gather(*(one(i) for i in range(count)))
    held = (ctx.server.rss() - rss_before) / 1024 / count
    await c.close()
    return {"rss_KiB_per_finished_1MiB_process": held}


async def slow_reader(ctx: Context) -> Metrics:
    """A client that does not read for a while: what piles up, and does another one suffer?"""
    size = ctx.size(128, 32) * MIB
    c = await session(ctx.url)
    ctx.server.reset_peak()
    rss_before = ctx.server.rss()
    socket = c.transport.underlying_transport
    process, future = c.start_request("slow", ["/usr/bin/head", "-c", str(size), "/dev/zero"])
    await future
    socket.pause_reading()
    other = await session(ctx.url)
    metrics: Metrics = {"lat.other_session_spawn": await spawn_for(other, 1.5)}
    metrics["rss_growth_while_stalled_MiB"] = (ctx.server.peak() - rss_before) / MIB
    socket.resume_reading()
    await asyncio.wait_for(process.done, 60)
    metrics["rss_peak_MiB"] = ctx.server.peak() / MIB
    check(metrics, process, size)
    await c.close()
    await other.close()
    return metrics


async def spawn_for(c: Connection, seconds: float) -> list[float]:
    """Start /bin/true again and again for a while; the times until ``closed``."""
    latencies: list[float] = []
    end = now() + seconds
    while now() < end:
        begin = now()
        process, future = c.start_request(f"q{len(latencies)}", ["/bin/true"])
        await asyncio.wait_for(future, 10)
        latencies.append(us(await asyncio.wait_for(process.done, 10) - begin))
    return latencies


async def storm(ctx: Context) -> Metrics:
    """All clients come at once, and each runs one process."""
    count = ctx.size(200, 40)
    metrics: Metrics = {"lat.connect_to_closed": [], "bad.failed": 0}
    ctx.server.reset_peak()
    rss_before = ctx.server.rss()

    async def one() -> None:
        begin = now()
        try:
            c = await session(ctx.url)
            process, future = c.start_request("x", ["/bin/true"])
            await future
            await asyncio.wait_for(process.done, 30)
            metrics["lat.connect_to_closed"].append(us(now() - begin))
            await c.close()
        except Exception as e:
            add(metrics, "bad.failed", 1)
            metrics.setdefault("error.storm", f"{type(e).__name__}: {e}"[:200])

    begin = now()
    await asyncio.wait_for(asyncio.gather(*(one() for _ in range(count))), 60)
    metrics["total_s"] = now() - begin
    metrics["connections_s"] = count / metrics["total_s"]
    metrics["rss_growth_MiB"] = (ctx.server.peak() - rss_before) / MIB
    return metrics
