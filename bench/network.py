"""The managed network beside Codex's and srt's, interleaved, in one run.

network.py [--sets 3] [--peers codex,srt] [--megabytes 400] [--ordinary]

Prints medians and the goals: a program inside a sandbox (and one outside, behind the same proxy)
opens tunnels to an origin on loopback.  CPU is that of the proxy and its helpers, without the
program's own.  The last rows are ours alone: what a start with a managed network costs over one
without a network.  Peers are fetched by npm into the cache; srt needs socat.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import wire
from peer_binary import cache_folder, find_peer
from proc import TICK, Server, stat_fields, tree

HERE = Path(__file__).resolve().parent
SRT = "@anthropic-ai/sandbox-runtime@0.0.78"
CLIENT = HERE / "network_client.py"
#: Row, command, whether more is better.
ROWS = {
    "MB/s": ("download", True),
    "CPU s/GB": ("", False),
    "connections/s": ("connections", True),
    "CPU ms/connection": ("", False),
    "connect + byte us": ("latency", False),
    "ping p50 us": ("ping", False),
}
#: (where, row) -> the bound of ours over Codex's and over srt's.
GOALS = {
    ("inside", "MB/s"): (1.5, 5.0),
    ("inside", "connections/s"): (0.8, 3.0),
    ("inside", "connect + byte us"): (1.3, 0.5),
    ("inside", "ping p50 us"): (1.5, 1.0),
    ("outside", "connections/s"): (0.6, 1.2),
    ("inside", "CPU s/GB"): (1.0, 0.5),
}
#: Milliseconds of a start with a managed network over one without a network.
START_GOALS = {"never connects": 0.5, "connects once": 3.0}


class Origin:
    """Sends as much as it is told, or says back what it hears; a thread for each connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            line = self._listener.accept()[0]
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            first = line.recv(1)
            if first == b"d":
                left, block = int(line.recv(30)), bytes(1 << 20)
                while left:
                    left -= line.send(block[:left])
                line.recv(1)
                return
            while first:
                line.sendall(first)
                first = line.recv(4096)


class Measured:
    """A running network_client.py, and the processes that serve it."""

    name = ""
    where = ""

    async def ask(self, line: str) -> dict[str, float]:
        raise NotImplementedError

    def pids(self) -> list[int]:
        """Of the proxy and all its helpers, and of the client."""
        raise NotImplementedError

    async def end(self) -> None:
        pass

    async def cpu(self) -> float:
        """Seconds of all of them so far."""
        found = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                found += sum(map(int, stat_fields(pid)[11:13]))
        return found / TICK


class ByWire(Measured):
    """A client that a server has started; ours and Codex's alike."""

    def __init__(self, name: str, where: str, server: Server) -> None:
        self.name, self.where, self._server = name, where, server

    async def begin(self, port: int, work: Path) -> None:
        self._wire = await wire.session(self._server.url)
        self._heard = bytearray()
        self._news = asyncio.Event()
        network = managed(port)
        options: dict[str, Any] = {"pipeStdin": True, "cwd": work.as_uri(), **network}
        if self.where == "inside":
            options["sandbox"] = wire.workspace_sandbox(work.as_uri())
        else:
            options["enforceManagedNetwork"] = False
        program = [sys.executable, "-I", str(CLIENT), str(port)]

        def hook(_: Any, data: bytes, begin: int, end: int) -> None:
            self._heard += base64.b64decode(data[begin:end])
            self._news.set()

        self._process, _ = await start(self._wire, "p", program, hook, options)
        await self._line()

    async def ask(self, line: str) -> dict[str, float]:
        await self._wire.write_request("p", line.encode() + b"\n", f"w{time.time_ns()}")
        return json.loads(await self._line())

    async def _line(self) -> str:
        while b"\n" not in self._heard:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 120)
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard[:] = rest
        return line.decode()

    def pids(self) -> list[int]:
        self._server.refresh()
        return list({pid for one in self._server.pids for pid in tree(one)})

    async def end(self) -> None:
        await self._wire.close()


class ByPipe(Measured):
    """A client that srt has started, or one that uses the proxy of an srt."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where

    async def begin(self, words: list[str], env: dict[str, str], below: int = 0) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *words, env=env, stdin=pipe, stdout=pipe
        )
        self._below = below
        assert self._process.stdout
        assert await asyncio.wait_for(self._process.stdout.readline(), 60) == b"ready\n"

    async def ask(self, line: str) -> dict[str, float]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(line.encode() + b"\n")
        return json.loads(await asyncio.wait_for(self._process.stdout.readline(), 120))

    def pids(self) -> list[int]:
        return tree(self._process.pid) + (tree(self._below) if self._below else [])

    async def end(self) -> None:
        for pid in reversed(tree(self._process.pid)):  # srt waits for its helpers, which stay
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()


async def start(
    line: wire.Connection, name: str, argv: list[str], hook: Any, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Start a process whose output goes to ``hook``."""
    process = line.watch(name, hook)
    params = {"processId": name, "argv": argv, "env": {"PATH": os.environ["PATH"]}, "tty": False}
    return process, await line.call("process/start", {**params, **options})


def managed(port: int) -> dict[str, Any]:
    """The members of a start with a managed network in which the origin is allowed."""
    proxy = {
        "enabled": True,
        "enableSocks5": True,
        "enableSocks5Udp": False,
        "allowUpstreamProxy": False,
        "dangerouslyAllowAllUnixSockets": False,
        "mode": "full",
        # Codex drops ports in patterns.
        "domains": {"127.0.0.1": "allow", "denied.example": "deny"},
        "unixSockets": None,
        "allowLocalBinding": False,
    }
    return {"enforceManagedNetwork": True, "networkProxy": {"proxy": proxy}}


def srt_folder() -> Path:
    """Where srt is; npm is asked for it."""
    folder = cache_folder() / "srt"
    package = folder / "node_modules" / "@anthropic-ai" / "sandbox-runtime"
    if not package.exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder)]
        subprocess.run([*npm, SRT], check=True, stdout=subprocess.DEVNULL)
    return package


SRT_PROXY = """
import { SandboxManager } from '%s/dist/index.js'
await SandboxManager.initialize(JSON.parse(process.argv[2]))
await SandboxManager.waitForNetworkInitialization?.()
const wrapped = await SandboxManager.wrapWithSandbox('env')
console.log(JSON.stringify([SandboxManager.getProxyPort(), wrapped]))
setInterval(() => {}, 1000)
"""


async def begin_srt(port: int, work: Path) -> list[Measured]:
    """A client inside srt, and one outside that uses its proxy."""
    package = srt_folder()
    settings = {
        "network": {"allowedDomains": [f"127.0.0.1:{port}"], "deniedDomains": ["denied.example"]},
        "filesystem": {"denyRead": [], "allowWrite": [str(work)], "denyWrite": []},
    }
    file = work / "srt.json"
    file.write_text(json.dumps(settings))
    client = [sys.executable, "-I", str(CLIENT), str(port)]
    inside = ByPipe("srt", "inside")
    srt = ["node", str(package / "dist" / "cli.js"), "--settings", str(file)]
    await inside.begin([*srt, *client], dict(os.environ))
    script = work / "proxy.mjs"
    script.write_text(SRT_PROXY % package)
    proxy = await asyncio.create_subprocess_exec(
        "node", str(script), json.dumps(settings), stdout=asyncio.subprocess.PIPE
    )
    assert proxy.stdout
    number, wrapped = json.loads(await asyncio.wait_for(proxy.stdout.readline(), 60))
    user = ""
    if "HTTP_PROXY" in wrapped and "@" in wrapped.partition("HTTP_PROXY")[2][:200]:
        user = wrapped.partition("HTTP_PROXY")[2].partition("//")[2].partition("@")[0] + "@"
    outside = ByPipe("srt", "outside")
    env = {**os.environ, "HTTP_PROXY": f"http://{user}127.0.0.1:{number}"}
    await outside.begin(client, env, proxy.pid)
    proxies.append(proxy)
    return [inside, outside]


proxies: list[Any] = []


async def measure(one: Measured, row: str, megabytes: int) -> dict[str, float]:
    """The values of one command on one of them."""
    command, _ = ROWS[row]
    number = {"download": megabytes * 1_000_000, "connections": 400, "latency": 150, "ping": 1000}
    before = await one.cpu()
    answer = await one.ask(f"{command} {number[command]}")
    spent = await one.cpu() - before - answer["cpu"]
    found = {row: answer["value"]}
    if command == "download":
        found["CPU s/GB"] = spent * 1000 / megabytes
    elif command == "connections":
        found["CPU ms/connection"] = spent * 1000 / number[command]
    return found


#: One tunnel and its answer, by the shell's own means; without a network the connect is refused.
CONNECTS = """exec 3<>/dev/tcp/127.0.0.1/800 || exit 7
printf 'CONNECT 127.0.0.1:%d HTTP/1.1\\r\\n\\r\\n' $1 >&3
read -r line <&3 && case $line in *" 200 "*) exit 0;; esac
exit 8
"""


async def measure_starts(server: Server, port: int, work: Path, count: int) -> dict[str, float]:
    """Milliseconds from a start to its end, with a managed network over one without a network.

    Of a command that never connects, and of one that makes its first connection.
    """
    line = await wire.session(server.url)
    contained = {"cwd": work.as_uri(), "sandbox": wire.workspace_sandbox(work.as_uri())}
    commands = {
        "never connects": ["/bin/true"],
        "connects once": ["bash", "--norc", "-c", CONNECTS, "bash", str(port)],
    }
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    # One kind after the other: what ends behind a command that has connected is not the next one's.
    for kind, argv in commands.items():
        for number in range(count):
            for is_managed in (False, True) if number % 2 else (True, False):  # each is first
                options = {**contained, **(managed(port) if is_managed else {})}
                name = f"{kind} {is_managed} {number}"
                begun = time.perf_counter()
                process, _ = await start(line, name, argv, None, options)
                await process.done
                found[kind, is_managed].append((time.perf_counter() - begun) * 1000)
                wanted = 7 if kind == "connects once" and not is_managed else 0
                if process.exit_code != wanted:
                    raise SystemExit(f"{name}: exit code {process.exit_code}")
                line.forget(name)
    await line.close()
    for kind in commands:
        plain, with_network = (statistics.median(found[kind, one]) for one in (False, True))
        print(f"start to end, ms, {kind}: plain {plain:.2f}, managed {with_network:.2f}")
    return {
        kind: statistics.median(
            b - a for a, b in zip(found[kind, False], found[kind, True], strict=True)
        )
        for kind in commands
    }


def table(values: dict[tuple[str, str, str], list[float]], peers: list[str]) -> None:
    """Print medians, ratios and goals."""
    names = ["ours", *peers]
    print("| | " + " | ".join([*names, *(f"/ {peer}" for peer in peers), "goal"]) + " |")
    print("|---" * (len(names) + len(peers) + 2) + "|")
    for where in ("inside", "outside"):
        for row, (_, more) in ROWS.items():
            medians = {n: statistics.median(values[where, row, n]) for n in names}
            ratios = [medians["ours"] / medians[peer] for peer in peers]
            goal = ""
            if (where, row) in GOALS:
                bounds = dict(zip(("codex", "srt"), GOALS[where, row], strict=True))
                met = [
                    r >= bounds[p] if more else r <= bounds[p]
                    for p, r in zip(peers, ratios, strict=True)
                ]
                sign = ">=" if more else "<="
                goal = ", ".join(f"{sign} {bounds[peer]:g} {peer}" for peer in peers)
                goal += " OK" if all(met) else " MISSED"
            cells = [f"{medians[n]:.4g}" for n in names] + [f"{r:.2f}" for r in ratios] + [goal]
            print(f"| {where}: {row} | " + " | ".join(cells) + " |", flush=True)


async def main(options: argparse.Namespace) -> None:
    """Start everything, measure in turns, print."""
    base = Path(tempfile.mkdtemp(prefix="network", dir=options.folder))
    work = base / "work"
    work.mkdir()
    origin = Origin()
    peers = [peer for peer in options.peers.split(",") if peer]
    commands = {"ours": f"{sys.executable} -m handrail serve --listen ws://127.0.0.1:{{port}}"}
    if "codex" in peers:
        commands["codex"] = f"{find_peer()} exec-server --listen ws://127.0.0.1:{{port}}"
    servers, running = {}, []
    try:
        for name, command in commands.items():
            state = {"BENCH_STATE": str(base), "XDG_STATE_HOME": str(base / "state")}
            home = {"HOME": str(base), "CODEX_HOME": str(base)}
            env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
            servers[name] = Server(name, command, {**env, **state, **home})
            servers[name].launch()
            servers[name].wait_port()
            for where in ("inside", "outside"):
                running.append(ByWire(name, where, servers[name]))
                await running[-1].begin(origin.port, work)
        if "srt" in peers:
            running += await begin_srt(origin.port, work)
        values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for turn in range(options.sets + 1):  # the first warms up
            for row, (command, _) in ROWS.items():
                for one in running if command else ():
                    for found, value in (await measure(one, row, options.megabytes)).items():
                        if turn:
                            values[one.where, found, one.name].append(value)
        table(values, peers)
        starts = await measure_starts(servers["ours"], origin.port, work, options.starts)
        for kind, more in starts.items():
            most = START_GOALS[kind]
            word = "OK" if more <= most else "MISSED"
            print(f"managed over plain, {kind}: {more:+.2f} ms, goal <= {most:g} {word}")
    finally:
        for one in running:
            await one.end()
        for proxy in proxies:
            proxy.kill()
            await proxy.wait()
        for server in servers.values():
            server.stop()
        shutil.rmtree(base, ignore_errors=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--sets", type=int, default=3, help="a warm-up comes before them")
    ap.add_argument("--peers", default="codex,srt", metavar="A,B", help="codex, srt, or none")
    ap.add_argument("--megabytes", type=int, default=400, help="of a download")
    ap.add_argument("--starts", type=int, default=60, help="of each kind")
    ap.add_argument("--ordinary", action="store_true", help="without real-time priority")
    options = ap.parse_args()
    # Not in the system's temporary directory: Codex's sandbox does not work inside it.
    options.folder = cache_folder() / "bench"
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    arguments = parse_options()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # it ends what it has started then too
    if not arguments.ordinary:
        # Before the processes of others, so that a busy machine does not decide.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    asyncio.run(main(arguments))
