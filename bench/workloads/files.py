"""The methods on files: big ones, big folders, and one through the sandbox."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from wire import Connection, RpcError, b64decode, b64encode, now, session, workspace_sandbox

from .context import MIB, Context, Metrics, us

WALK = {
    "maxDepth": 64,
    "maxDirectories": 10_000,
    "maxEntries": 50_000,
    "followDirectorySymlinks": False,
}


async def fs(ctx: Context) -> Metrics:
    """Each method a few times; one that fails is an ``error.*`` and the rest goes on."""
    make_files(ctx)
    with open(ctx.path("file16"), "rb") as f:
        data = f.read()
    metrics: Metrics = {}
    count = ctx.size(6, 2)
    c = await session(ctx.url)
    await read_methods(ctx, c, data, count, metrics)
    for mib in (8, 16):
        if c.closed.done():
            c = await session(ctx.url)
        await write_file(ctx, c, data[: mib * MIB], count, metrics)
    if not c.closed.done():
        await c.close()
    c = await session(ctx.url)
    os.makedirs(ctx.path("ws"), exist_ok=True)
    sandboxed = {"path": ctx.uri("file16"), "sandbox": workspace_sandbox(ctx.uri("ws"))}
    repeat = ctx.size(10, 3)
    await timed(c, metrics, "metadata_sandboxed", "fs/getMetadata", sandboxed, repeat)
    if not c.closed.done():
        await c.close()
    return metrics


async def read_methods(
    ctx: Context, c: Connection, data: bytes, count: int, metrics: Metrics
) -> None:
    """Reading a file, its metadata, a folder and a tree."""
    file = {"path": ctx.uri("file16"), "sandbox": None}
    result = await timed(c, metrics, "read_16MiB", "fs/readFile", file, count)
    if result:
        metrics["bad.read_differs"] = int(b64decode(result["dataBase64"]) != data)
    await timed(c, metrics, "metadata", "fs/getMetadata", file, ctx.size(300, 50))
    folder = {"path": ctx.uri("dir5000"), "sandbox": None}
    result = await timed(c, metrics, "readdir_5000", "fs/readDirectory", folder, count)
    if result:
        metrics["bad.readdir_entries"] = 5000 - len(result["entries"])
    walk = {"path": ctx.uri("walk"), "options": WALK, "sandbox": None}
    result = await timed(c, metrics, "walk_20k", "fs/walk", walk, count)
    if result:
        metrics["walk_entries"] = len(result["entries"])
        metrics["walk_truncated"] = int(result["truncated"])


async def write_file(
    ctx: Context, c: Connection, data: bytes, count: int, metrics: Metrics
) -> None:
    """Writing a file in one call; beyond the largest message a server may hang up."""
    name = f"{len(data) // MIB}MiB"
    path = "out" + name
    params = {"path": ctx.uri(path), "dataBase64": b64encode(data).decode(), "sandbox": None}
    result = await timed(c, metrics, "write_" + name, "fs/writeFile", params, count)
    if result is not None:
        with open(ctx.path(path), "rb") as f:
            metrics[f"bad.write_{name}_differs"] = int(f.read() != data)


async def timed(
    c: Connection, metrics: Metrics, name: str, method: str, params: dict[str, Any], count: int
) -> Any:
    """Call a method some times; gives the last result, or None when it failed."""
    latencies = []
    result = None
    try:
        for _ in range(count):
            begin = now()
            result, answered = await asyncio.wait_for(c.request(method, params), 30)
            latencies.append(us(answered - begin))
        metrics["lat." + name] = latencies
    except (RpcError, ConnectionError, TimeoutError) as e:
        metrics["error." + name] = f"{type(e).__name__}: {e}"[:300]
    return result


def make_files(ctx: Context) -> None:
    """A folder of 5,000 files, a tree of 20,000 entries and a file of 16 MiB, made once."""
    folder = ctx.path("dir5000")
    if not os.path.exists(folder):
        os.makedirs(folder)
        for i in range(5000):
            touch(os.path.join(folder, f"entry{i:05d}"))
    top = ctx.path("walk")
    if not os.path.exists(top):
        for i in range(200):
            os.makedirs(os.path.join(top, f"d{i:03d}"))
            for j in range(99):
                touch(os.path.join(top, f"d{i:03d}", f"f{j:02d}.txt"))
    if not os.path.exists(ctx.path("file16")):
        with open(ctx.path("file16"), "wb") as f:
            f.write(os.urandom(16 * MIB))


def touch(path: str) -> None:
    """An empty file."""
    with open(path, "w"):
        pass
