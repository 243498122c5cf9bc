"""Behaviour probes (not speed): things a careful server should survive.

anomalies.py --server NAME='command with {port}' [...]     one JSON object per server on stdout
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import signal
from typing import Any

import uvloop
import wire
from proc import Server

HERE = os.path.dirname(os.path.abspath(__file__))
STATE = os.path.join(HERE, ".state")
MIB = 1 << 20
#: What a probe found, as it is printed.
Found = dict[str, Any]


class Output:
    """Collects what a process writes; ``take`` is the hook."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def take(self, _process: wire.Process, data: bytes, start: int, end: int) -> None:
        self.chunks.append(wire.b64decode(data[start:end]))

    def __bytes__(self) -> bytes:
        return b"".join(self.chunks)


async def methods(url: str) -> Found:
    """What do methods answer that not every server has?"""
    c = await wire.session(url)
    calls = {
        "process/resize": {"processId": "x", "rows": 10, "cols": 10},
        "process/closeStdin": {"processId": "x"},
        "process/list": {},
        "environment/status": {},
    }
    found: Found = {}
    for method, params in calls.items():
        try:
            found[method] = await c.call(method, params, 5)
        except wire.RpcError as e:
            found[method] = e.args[0]
        except Exception as e:
            found[method] = repr(e)
    await c.close()
    return found


async def pty_size(url: str) -> Found:
    """How large is a terminal nobody gave a size?"""
    c = await wire.session(url)
    output = Output()
    process, _ = await c.start("z", ["/bin/stty", "size"], tty=True, hook=output.take)
    await asyncio.wait_for(process.done, 5)
    await c.close()
    return {"stty_size": bytes(output).decode().strip()}


async def evicted(url: str) -> Found:
    """3 MiB of output against the retention: does a late read say that something is gone?"""
    c = await wire.session(url)
    process, _ = await c.start("e", ["/usr/bin/head", "-c", str(3 * MIB), "/dev/zero"])
    await asyncio.wait_for(process.done, 20)
    params = {"processId": "e", "afterSeq": 0, "maxBytes": None, "waitMs": 0}
    result = await c.call("process/read", params)
    await c.close()
    chunks = result.pop("chunks")
    return {
        "bytes": sum(len(wire.b64decode(chunk["chunk"])) for chunk in chunks),
        "first_seq": chunks[0]["seq"] if chunks else None,
        "fields": result,
    }


async def background_child(url: str) -> Found:
    """The shell ends, a grandchild keeps the pipe open."""
    c = await wire.session(url)
    begin = wire.now()
    process, _ = await c.start("b", ["/bin/sh", "-c", "sleep 3 & exit 0"])
    exited = await asyncio.wait_for(process.exit_event, 10)
    closed = await asyncio.wait_for(process.done, 10)
    await c.close()
    return {
        "exited_ms": round(1e3 * (exited - begin)),
        "closed_ms": round(1e3 * (closed - begin)),
    }


async def terminate_tree(url: str) -> Found:
    """Terminate a shell whose child has its own session: does the child survive?"""
    c = await wire.session(url)
    output = Output()
    script = "setsid sleep 47 & echo $!; wait"
    process, _ = await c.start("t", ["/bin/sh", "-c", script], hook=output.take)
    await asyncio.sleep(0.3)
    await c.call("process/terminate", {"processId": "t"})
    await asyncio.sleep(0.5)
    pid = int(bytes(output).split()[0])
    try:
        os.kill(pid, signal.SIGKILL)
        alive = True
    except OSError:
        alive = False
    await c.close()
    return {"setsid_child_survives_terminate": alive, "closed_seen": process.done.done()}


async def race(url: str) -> Found:
    """In 300 short processes: how often is the order of events, or a byte, not as it should be?"""
    c = await wire.session(url)
    found = {"closed_before_exited": 0, "reordered": 0, "lost": 0, "n": 0}
    width = asyncio.Semaphore(16)

    async def one(i: int) -> None:
        async with width:
            argv = ["/bin/sh", "-c", "echo a; echo b >&2"]
            process, future = c.start_request(f"r{i}", argv)
            await future
            await asyncio.wait_for(process.done, 20)
            found["n"] += 1
            found["closed_before_exited"] += process.closed_before_exited
            found["reordered"] += process.reordered
            found["lost"] += process.lost_seqs + (4 - process.bytes)

    await asyncio.gather(*(one(i) for i in range(300)))
    await c.close()
    return found


async def bash_rc(url: str) -> Found:
    """bash -c in a sandbox without network: does it take stdin for a socket and read ~/.bashrc?"""
    home = os.path.join(STATE, "rc")
    os.makedirs(home, exist_ok=True)
    with open(os.path.join(home, ".bashrc"), "w") as f:
        f.write("echo RC-WAS-READ\n")
    c = await wire.session(url)
    env = {"PATH": "/usr/bin:/bin", "HOME": home}
    cwd = "file://" + home
    found: Found = {}
    for name, sandbox in (("plain", None), ("sandboxed", wire.workspace_sandbox(cwd))):
        output = Output()
        argv = ["/bin/bash", "-c", "echo hi"]
        process, _ = await c.start(
            "h" + name, argv, env=env, sandbox=sandbox, cwd=cwd, hook=output.take
        )
        await asyncio.wait_for(process.done, 10)
        found[name] = bytes(output).decode()
    await c.close()
    return found


async def big_frame(url: str) -> Found:
    """How large may a message be, and what happens beyond?"""
    path = os.path.join(STATE, "big")
    found: Found = {}
    for mib in (8, 11, 12, 16, 32):
        c = await wire.session(url)
        data = wire.b64encode(bytes(mib * MIB)).decode()
        params = {"path": "file://" + path, "dataBase64": data, "sandbox": None}
        try:
            await c.call("fs/writeFile", params)
            found[f"write_{mib}MiB"] = "ok"
        except Exception as e:
            error = f"{type(e).__name__}: {e}"[:200]
            found[f"write_{mib}MiB"] = f"{error} close={c.stray[:1]}"
        if not c.closed.done():
            await c.close()
    try:
        os.unlink(path)
    except OSError:
        pass
    return found


async def stuck_stdin(url: str) -> Found:
    """Writes to a process that never reads its stdin: can it still be terminated?"""
    c = await wire.session(url)
    process, _ = await c.start("s", ["/bin/sleep", "60"], pipe_stdin=True)
    writes = [c.write_request("s", bytes(65536), f"w{i}") for i in range(200)]
    await asyncio.sleep(0.5)
    accepted = sum(future.done() for future in writes)
    begin = wire.now()
    terminated = c.request("process/terminate", {"processId": "s"})
    try:
        await asyncio.wait_for(process.done, 6)
        outcome = f"terminated after {1e3 * (wire.now() - begin):.0f} ms"
    except TimeoutError:
        outcome = "terminate not served within 6 s: the connection is stuck"
    for future in (*writes, terminated):
        future.cancel()
    await c.close()
    return {"writes_accepted_of_200x64KiB": accepted, "terminate": outcome}


async def busy_neighbour(server: Server, url: str) -> Found:
    """CPU of the idle server while unrelated processes start elsewhere on the machine."""
    c = await wire.session(url)
    await asyncio.sleep(0.3)
    begin = server.cpu()[0]
    await asyncio.sleep(2)
    quiet = server.cpu()[0]
    for _ in range(600):
        os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)
    busy = server.cpu()[0]
    await c.close()
    return {
        "cpu_ms_in_2s_quiet": round(1e3 * (quiet - begin)),
        "cpu_ms_during_600_foreign_spawns": round(1e3 * (busy - quiet)),
    }


async def probe(server: Server) -> Found:
    """All probes on one server; one that raises is a sentence, and the rest goes on."""
    probes = {
        "methods": methods,
        "pty_size": pty_size,
        "evicted": evicted,
        "background_child": background_child,
        "terminate_tree": terminate_tree,
        "race": race,
        "bash_rc": bash_rc,
        "big_frame": big_frame,
        "stuck_stdin": stuck_stdin,
        "busy_neighbour": functools.partial(busy_neighbour, server),
    }
    found: Found = {}
    for name, run in probes.items():
        try:
            found[name] = await asyncio.wait_for(run(server.url), 40)
        except Exception as e:
            found[name] = f"{type(e).__name__}: {e}"[:300]
    return found


async def main(options: argparse.Namespace) -> None:
    """Each server by itself."""
    env = {**os.environ, "BENCH_STATE": STATE, "CODEX_HOME": os.path.join(STATE, "home")}
    os.makedirs(env["CODEX_HOME"], exist_ok=True)
    for spec in options.server:
        server = Server(*spec.split("=", 1), env)
        server.launch()
        server.wait_port()
        try:
            found = await probe(server)
        finally:
            server.stop()
        print(json.dumps({server.name: found}, indent=1), flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--server", action="append", required=True)
    uvloop.run(main(ap.parse_args()))
