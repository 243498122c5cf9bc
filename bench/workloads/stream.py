"""Much output: how fast, in what frames, at what cost, and is it all there."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time

from wire import b64decode, now, session

from .context import MIB, Context, Metrics, check


async def stream_zero(ctx: Context) -> Metrics:
    """Zeros through a pipe."""
    size = ctx.size(256, 32) * MIB
    return await measure(ctx, ["/usr/bin/head", "-c", str(size), "/dev/zero"], size)


async def stream_text(ctx: Context) -> Metrics:
    """Text through a pipe; its content is compared once, outside the timing."""
    mib = ctx.size(256, 32)
    metrics = await measure(ctx, ["/bin/cat", text_file(ctx, mib)], mib * MIB)
    if ctx.repetition == 0:
        metrics["bad.content_differs"] = await content_differs(ctx)
    return metrics


async def stream_pty(ctx: Context) -> Metrics:
    """Text through a terminal, where every newline becomes two bytes."""
    mib = ctx.size(32, 8)
    path = text_file(ctx, mib)
    with open(path, "rb") as f:
        lines = f.read().count(b"\n")
    return await measure(ctx, ["/bin/cat", path], mib * MIB + lines, tty=True)


async def stream_many(ctx: Context) -> Metrics:
    """Zeros of 32 processes at once."""
    width, size = 32, ctx.size(8, 1) * MIB
    c = await session(ctx.url)
    ctx.server.reset_peak()
    cpu_before, _ = ctx.server.cpu()
    begin = now()
    argv = ["/usr/bin/head", "-c", str(size), "/dev/zero"]
    started = [c.start_request(f"m{i}", argv) for i in range(width)]
    await asyncio.gather(*(future for _, future in started))
    processes = [process for process, _ in started]
    ends = await asyncio.wait_for(asyncio.gather(*(p.done for p in processes)), 90)
    seconds = max(ends) - begin
    cpu, _ = ctx.server.cpu()
    metrics: Metrics = {
        "MB_s": width * size / seconds / 1e6,
        "server_cpu_s_per_GiB": (cpu - cpu_before) * (1 << 30) / (width * size),
        "rss_peak_MiB": ctx.server.peak() / MIB,
        "first_done_s": min(ends) - begin,
        "last_done_s": seconds,
        "bytes_per_frame": width * size / max(1, sum(p.frames for p in processes)),
    }
    for process in processes:
        check(metrics, process, size)
    await c.close()
    return metrics


async def measure(ctx: Context, argv: list[str], want: int, tty: bool = False) -> Metrics:
    """Run one process that writes ``want`` bytes."""
    c = await session(ctx.url)
    ctx.server.reset_peak()
    rss_before = ctx.server.rss()
    cpu_before, _ = ctx.server.cpu()
    client_before = time.process_time()
    begin = now()
    process, future = c.start_request("big", argv, tty=tty)
    await future
    seconds = await asyncio.wait_for(process.done, 90) - begin
    client = time.process_time() - client_before
    cpu, _ = ctx.server.cpu()
    metrics: Metrics = {
        "MB_s": want / seconds / 1e6,
        "frames": process.frames,
        "bytes_per_frame": process.bytes / max(1, process.frames),
        "server_cpu_s_per_GiB": (cpu - cpu_before) * (1 << 30) / want,
        "rss_peak_MiB": ctx.server.peak() / MIB,
        "rss_growth_MiB": (ctx.server.peak() - rss_before) / MIB,
        "client_busy": client / seconds,
        "wire_overhead": c.wire_bytes / want,
    }
    check(metrics, process, want)
    await c.close()
    return metrics


async def content_differs(ctx: Context) -> int:
    """1 if a file read through the server is not what it is on disk."""
    path = text_file(ctx, 16)
    digest = hashlib.sha256()
    c = await session(ctx.url)
    process, _ = await c.start(
        "chk", ["/bin/cat", path], hook=lambda _p, b, i, j: digest.update(b64decode(b[i:j]))
    )
    await asyncio.wait_for(process.done, 60)
    await c.close()
    with open(path, "rb") as f:
        return int(hashlib.sha256(f.read()).digest() != digest.digest())


def text_file(ctx: Context, mib: int) -> str:
    """A file of numbered lines, made once."""
    path = ctx.path(f"text{mib}")
    if not os.path.exists(path):
        words = "the quick brown fox jumps over the lazy dog, again and again ......"
        block = "".join(f"{i:07d} {words}\n" for i in range(14000)).encode()[:MIB]
        with open(path, "wb") as f:
            f.writelines(block for _ in range(mib))
    return path
