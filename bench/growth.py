"""What one server costs as it grows: 10, 100, 1,000 and 10,000 live processes, and many clients.

growth.py [--sizes 10,100,1000,10000] [--no-peer] [--ours CMD] [--json FILE] [--svg DIR]

Each size has a server of its own.  Processes sleep, and are ended by the server that started them.
A size beyond what the machine allows is lowered to that, and the first line says so.  The cost per
process is flat when no size takes more than 1.2 times the cheapest one's time, beyond what a
server without processes takes.  CPU time is that of server and keeper, and says more on a busy
machine; as root everything runs under SCHED_RR.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
import wire
from compare import our_server, peer_server
from curves import Curve, draw
from growth_clients import clients, streams
from peer_binary import cache_folder
from proc import Server
from report import figure, percentile
from targets import OURS, PEER

SIZES = (10, 100, 1000, 10_000)
#: A process that sleeps: three descriptors in the server, as many in the keeper.
FDS_EACH = 3
FDS_SPARE = 400
#: Processes of others that the machine has room for beside ours.
PIDS_SPARE = 4000
#: Seconds for one step of one size; a server that takes longer gets no larger size.
STEP_LIMIT = 150.0
FLAT = 1.2
#: Metrics that must not grow with the number of processes.
JUDGED = (
    "start_ms",
    "start_cpu_us",
    "list_us_each",
    "terminate_ms",
    "terminate_cpu_us",
    "adopt_ms_each",
    "rss_KiB_each",
    "fds_each",
)
SLEEP = ["/bin/sleep", "3600"]
TRUE = ["/bin/true"]


def allowed() -> tuple[int, str]:
    """How many processes this machine lets a server have, and which limit says so."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, 1 << 17),) * 2)
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    pids = int(Path("/proc/sys/kernel/pid_max").read_text())
    bounds = {
        f"{files} descriptors each": (files - FDS_SPARE) // FDS_EACH,
        f"{pids} process numbers": pids - PIDS_SPARE,
    }
    reason = min(bounds, key=lambda name: bounds[name])
    return bounds[reason], reason


class Grown:
    """One server with a number of live processes."""

    def __init__(self, server: Server, count: int) -> None:
        self.server = server
        self.count = count
        self.names: list[str] = []
        self.found: dict[str, Any] = {}

    async def measure(self, *, adopts: bool) -> dict[str, Any]:
        """Start them, look at the server, kill it, have them adopted, end them."""
        self.server.launch()
        try:
            self.server.wait_port()
            connection = await wire.session(self.server.url, quickack=True)
            await self.weigh(connection)
            await self.ask(connection)
            if adopts:
                connection = await self.adopt(connection)
            await self.end(connection)
            await connection.close()
        finally:
            self.server.end_children()
            self.server.stop()
        return self.found

    async def weigh(self, c: wire.Connection) -> None:
        """Memory and descriptors of each."""
        await spawn_true(c, "warm", 5)
        await asyncio.sleep(0.3)  # until what these had is closed
        before, fds_before = self.server.rss(), self.server.fds_threads()[0]
        began = wire.now()
        for batch in batches(self.count, 64):
            started = [c.start_request(f"g{i}", SLEEP) for i in batch]
            for process, future in started:
                await asyncio.wait_for(future, STEP_LIMIT)
                self.names.append(process.pid)
            if wire.now() - began > STEP_LIMIT:
                raise TimeoutError(f"{len(self.names)} of {self.count} were started in time")
        self.found["start_all_ms_each"] = (wire.now() - began) * 1e3 / self.count
        await asyncio.sleep(0.3)
        self.found["rss_KiB_each"] = (self.server.rss() - before) / 1024 / self.count
        fds = self.server.fds_threads()[0]
        self.found["fds_each"] = (fds - fds_before) / self.count

    async def ask(self, c: wire.Connection) -> None:
        """One more start, the list, and a small request, with all of them alive."""
        cpu = self.server.cpu_us()
        self.found["start_ms"] = statistics.median(await spawn_true(c, "t", 60))
        self.found["start_cpu_us"] = (self.server.cpu_us() - cpu) / 60
        small = []
        for _ in range(300):
            began = wire.now()
            await c.call("environment/status", {})
            small.append((wire.now() - began) * 1e3)
        self.found["request_p50_ms"] = percentile(small, 0.5)
        self.found["request_p99_ms"] = percentile(small, 0.99)
        times = []
        for _ in range(9):
            began = wire.now()
            try:
                await c.call("process/list", {})
            except wire.RpcError:
                return  # a method of ours
            times.append((wire.now() - began) * 1e6)
        self.found["list_ms"] = min(times) / 1e3
        self.found["list_us_each"] = min(times) / self.count

    async def adopt(self, c: wire.Connection) -> wire.Connection:
        """Kill the server without warning; the next has all of them when it answers."""
        self.server.process.kill()
        self.server.process.wait()
        self.server.relaunch()
        self.server.wait_port(STEP_LIMIT)
        after = await wire.connect(self.server.url, quickack=True)
        await after.initialize(resume=c.session_id)
        self.found["adopt_ms"] = (wire.now() - self.server.launched_at) * 1e3
        # Apart from the start of a server, which takes longer than many adoptions.
        took = re.findall(
            r"took over \d+ processes .* in (\d+) ms", Path(self.server.log).read_text()
        )
        self.found["adopt_ms_each"] = int(took[-1]) / self.count
        listed = (await after.call("process/list", {}, STEP_LIMIT))["processes"]
        running = sum(row["state"] == "running" for row in listed)
        if running != self.count:
            raise RuntimeError(f"{running} of {self.count} processes were adopted")
        return after

    async def end(self, c: wire.Connection) -> None:
        """Terminate some alone, with the others alive, then all."""
        for name in self.names:
            c.watch(name)
        alone = self.names[: min(len(self.names) // 2, 40)]
        times = []
        cpu = self.server.cpu_us()
        for name in alone:
            began = wire.now()
            await c.call("process/terminate", {"processId": name})
            ended = await asyncio.wait_for(c.procs[name.encode()].done, STEP_LIMIT)
            times.append((ended - began) * 1e3)
        self.found["terminate_ms"] = statistics.median(times)
        self.found["terminate_cpu_us"] = (self.server.cpu_us() - cpu) / len(alone)
        rest = self.names[len(alone) :]
        began = wire.now()
        for batch in batches(len(rest), 64):
            asked = [c.request("process/terminate", {"processId": rest[i]}) for i in batch]
            for answer in asked:
                await asyncio.wait_for(answer, STEP_LIMIT)
        for name in rest:
            await asyncio.wait_for(c.procs[name.encode()].done, STEP_LIMIT)
        self.found["terminate_all_ms_each"] = (wire.now() - began) * 1e3 / len(rest)


@contextlib.contextmanager
def ahead_of_others() -> Iterator[None]:
    """Run before other programs of the machine, if that is allowed; children inherit it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def batches(count: int, width: int) -> Iterator[range]:
    """Numbers below ``count``, so many at a time."""
    for first in range(0, count, width):
        yield range(first, min(first + width, count))


async def spawn_true(c: wire.Connection, tag: str, count: int) -> list[float]:
    """Milliseconds from the request to ``closed``, one after another."""
    times = []
    for i in range(count):
        began = wire.now()
        process, future = c.start_request(f"{tag}{i}", TRUE)
        await asyncio.wait_for(future, STEP_LIMIT)
        times.append((await asyncio.wait_for(process.done, STEP_LIMIT) - began) * 1e3)
        c.forget(process.pid)
    return times


async def grow(name: str, command: str, sizes: list[int], env: dict[str, str]) -> dict[int, Any]:
    """All sizes on one kind of server, as far as it gets."""
    found: dict[int, Any] = {}
    for size in sizes:
        try:
            found[size] = await Grown(Server(name, command, env), size).measure(adopts=name == OURS)
        except Exception as e:
            said = Path(env["BENCH_STATE"], f"{name}.log").read_text(errors="replace")[-400:]
            print(f"{name} with {size} processes: {type(e).__name__}: {e}\n{said}", flush=True)
            break
        shown = ", ".join(f"{key} {figure(value)}" for key, value in found[size].items())
        print(f"{name} {size}: {shown}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[int, Any]]) -> str:
    """One row for each server and metric, one column for each size."""
    sizes = sorted({size for by_size in found.values() for size in by_size})
    lines = ["| | " + " | ".join(f"{size:,}" for size in sizes) + " | largest / smallest |"]
    lines.append("|---|" + "---:|" * (len(sizes) + 1))
    for name, by_size in found.items():
        for key in dict.fromkeys(key for metrics in by_size.values() for key in metrics):
            values = [by_size.get(size, {}).get(key) for size in sizes]
            known = [value for value in values if value]
            spread = f"{max(known) / min(known):.2f}" if known and key in JUDGED else ""
            lines.append(f"| {name} {key} | {' | '.join(map(figure, values))} | {spread} |")
    return "\n".join(lines)


def verdicts(found: dict[int, Any]) -> Iterator[str]:
    """Whether each cost per process is flat; sizes below 100 are too short to be timed each."""
    for key in JUDGED:
        values = {size: metrics[key] for size, metrics in found.items() if key in metrics}
        if key.endswith("_each"):
            values = {size: value for size, value in values.items() if size >= 100}
        if len(values) > 1:
            largest, first = values[max(values)], values[min(values)]
            word = "OK" if largest <= FLAT * first else "MISSED"
            yield (
                f"- {word:6} {key}: {figure(first)} with {min(values)}, {figure(largest)} with"
                f" {max(values)} ({largest / first:.2f} <= {FLAT})"
            )


def parse_options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--sizes", default=",".join(map(str, SIZES)), metavar="A,B")
    ap.add_argument("--ours", metavar="CMD", help="another command for our server, with {port}")
    ap.add_argument("--no-peer", action="store_true", help="our server alone")
    ap.add_argument("--no-clients", action="store_true", help="processes alone")
    ap.add_argument("--json", type=Path, metavar="FILE", help="keep all figures there")
    ap.add_argument("--svg", type=Path, metavar="DIR", help="draw the curves there")
    return ap.parse_args()


async def main(options: argparse.Namespace) -> None:
    """Grow both servers, print the table, draw the curves."""
    most, reason = allowed()
    sizes = sorted({min(int(size), most) for size in options.sizes.split(",")})
    if max(map(int, options.sizes.split(","))) > most:
        print(f"This machine allows {most:,} processes ({reason}).", flush=True)
    state = Path(tempfile.mkdtemp(prefix="growth", dir=made(cache_folder() / "bench")))
    env = {**os.environ, "BENCH_STATE": str(state), "XDG_STATE_HOME": str(state), "TMPDIR": "/tmp"}
    env.pop("XDG_RUNTIME_DIR", None)
    limits = f" --max-processes {2 * most} --max-session-processes {2 * most}"
    commands = {OURS: options.ours or our_server() + limits}
    peer = None if options.no_peer else peer_server()
    if peer:
        commands[PEER] = peer
    found: dict[str, Any] = {"processes": {}, "clients": {}}
    try:
        for name, command in commands.items():
            with ahead_of_others():
                found["processes"][name] = await grow(name, command, sizes, env)
                if not options.no_clients:
                    server = Server(name, command, env)
                    found["clients"][name] = {**await clients(server), **await streams(server)}
    finally:
        shutil.rmtree(state, ignore_errors=True)
    print(table(found["processes"]))
    print("\n" + "\n".join(verdicts(found["processes"][OURS])))
    for name, metrics in found["clients"].items():
        print(f"\n{name}: " + ", ".join(f"{k} {figure(v)}" for k, v in metrics.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.svg:
        write_curves(found["processes"], made(options.svg))


def write_curves(found: dict[str, dict[int, Any]], folder: Path) -> None:
    """A picture of each cost by the number of live processes."""
    for key, title in (
        ("start_ms", "start of true to closed, ms"),
        ("terminate_ms", "terminate to closed, ms"),
        ("rss_KiB_each", "memory for each process, KiB"),
    ):
        curves = [
            Curve(name, [(size, m[key]) for size, m in by_size.items() if key in m])
            for name, by_size in found.items()
        ]
        (folder / f"growth-{key.split('_')[0]}.svg").write_text(draw(title, curves))


def made(folder: Path) -> Path:
    """A folder that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    uvloop.run(main(parse_options()))
