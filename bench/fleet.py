"""A fleet beside plain Ray tasks and SWE-ReX, its growth, and a model of a larger one.

    make bench-fleet                    # or: python bench/fleet.py
    python bench/fleet.py --quick       # a few minutes; rough
    python bench/fleet.py --only growth,rex --strict

Everything is on this machine, interleaved in one run; a ratio is the median of three.  Ratios and
CPU times count.  ``--strict`` exits with 1 when a goal is missed.  SWE-ReX is installed into
``${XDG_CACHE_HOME:-~/.cache}/handrail/swe-rex`` (or is in ``$SWE_REX``); state is beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_enable_worker_prestart", "0")

import fleet_rows as rows
from fleet_costs import cpu_seconds, memory_kib, own_cpu

from handrail.fleet import Fleet

#: Row -> its goal: at least (+) or at most (-).
GOALS = {
    "commands / Ray tasks": +1.2,
    "map / Ray tasks": +1.2,
    "map / standing workspaces": +0.6,
    "commands / SWE-ReX, 32 at a time": +3.0,
    "one at a time": +1.5,
    "sandboxed: first / later, server CPU": -1.3,
    "driver CPU, ms: a command": -0.35,
    "a fresh workspace": -0.8,
    "warm / cold": -0.1,
    "KiB of an idle workspace: driver": -20.0,
    "server": -12.0,
}
_COEFFICIENTS = ("create", "command", "driver_kib", "server_kib", "list", "attach", "idle")
PARTS = ("ray", "rex", "costs", "growth")


class Report:
    """The medians of the rows, printed as they come."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.found: dict[str, list[float]] = {}
        self.missed: list[str] = []

    async def measure(self, work: Callable[[], Awaitable[dict[str, float]]]) -> None:
        """Measure some rows, as often as there are rounds."""
        names: list[str] = []
        for _ in range(self.rounds):
            for name, value in (await work()).items():
                self.found.setdefault(name, []).append(value)
                names.append(name)
        for name in dict.fromkeys(names):
            self._print(name)

    def _print(self, name: str) -> None:
        values = self.found[name]
        median, goal = statistics.median(values), GOALS[name]
        held = median >= goal if goal > 0 else median <= -goal
        if not held:
            self.missed.append(name)
        said = f"{'≥' if goal > 0 else '≤'} {abs(goal):g}"
        spread = f"{min(values):.3g} to {max(values):.3g}"
        mark = "OK" if held else "MISSED"
        print(f"{name:40} {median:8.3g}   {said:8} {mark:7} ({spread})", flush=True)


# --- fleets --------------------------------------------------------------------------------------


@contextlib.contextmanager
def hosts(count: int, folder: str) -> Iterator[list[str]]:
    """Servers with workspaces on this machine."""
    servers = []
    try:
        for number in range(count):
            place = os.path.join(folder, f"host{number}")
            words = ["serve", "--log-level", "error", "--state-dir", f"{place}-state"]
            words += ["--workspaces", place, "--share", "cpus=4000,memory=64GiB,workspaces=4096"]
            words += ["--min-free", "64MiB"]
            argv = [sys.executable, "-P", "-m", "handrail", *words]
            servers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        yield [server.stdout.readline().strip() for server in servers]  # type: ignore[union-attr]
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.communicate()


@contextlib.asynccontextmanager
async def ray_fleet(folder: str, nodes: int) -> AsyncIterator[Fleet]:
    """Simulated nodes, half of each for the fleet and half for plain Ray tasks."""
    import ray
    from ray.cluster_utils import Cluster

    each = rows.LANES // nodes
    small = {"object_store_memory": 80 * 2**20}
    head = {"num_cpus": 0, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            cluster.add_node(wait=False, num_cpus=2 * each, labels={"for": "bench"}, **small)
        cluster.wait_for_nodes(timeout=120)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        share = {"cpus": each, "memory": "512MiB"}
        fleet = Fleet(
            f"ray:{cluster.address}", share=share, labels={"for": "bench"}, min_free="64MiB",
            state_dir=os.path.join(folder, "ray"), tls="off",
        )  # fmt: skip
        async with fleet:
            await fleet.wait(nodes, timeout=120)
            yield fleet
    finally:
        ray.shutdown()
        cluster.shutdown()


# --- parts ---------------------------------------------------------------------------------------


async def beside_ray(report: Report, folder: str, count: int) -> dict[str, float]:
    """Ratios to plain Ray tasks; returns what the model needs of a node on Ray."""
    async with ray_fleet(folder, 4) as fleet:
        plain = rows.PlainRay()
        await plain.commands(2 * rows.LANES)  # its workers start
        await report.measure(lambda: rows.against_ray(fleet, plain, count))
        await report.measure(lambda: rows.map_and_standing(fleet, count))
        nodes = (await fleet.status()).nodes
        pids = {
            name: [pid for node in nodes if (pid := getattr(node, name))]
            for name in ("supervisor_pid", "server_pid", "keeper_pid")
        }
        found = {
            name: statistics.mean(map(memory_kib, some)) / 1024 if some else 0.0
            for name, some in pids.items()
        }
        before, seconds = cpu_seconds(*pids["supervisor_pid"]), 10.0
        await asyncio.sleep(seconds)
        spent = cpu_seconds(*pids["supervisor_pid"]) - before
        found["supervisor_cpu"] = spent / seconds / max(1, len(pids["supervisor_pid"]))
        return found


async def beside_rex(report: Report, folder: str, count: int) -> None:
    import fleet_rex

    place = await asyncio.to_thread(fleet_rex.environment)
    if place is None:
        return
    with hosts(1, folder) as urls, fleet_rex.Rex(place) as rex:
        async with Fleet(urls) as fleet:
            await report.measure(lambda: rows.against_rex(fleet, rex, count))


async def costs(report: Report, folder: str, count: int) -> None:
    with hosts(2, folder) as urls:
        async with Fleet(urls) as fleet:
            await report.measure(lambda: rows.first_and_later(fleet, count))
            await report.measure(lambda: rows.driver_cpu(fleet, count))
            await report.measure(lambda: rows.warm_and_cold(fleet, folder))
            await report.measure(lambda: rows.idle_memory(fleet, count))


async def growth(folder: str, most: int) -> dict[str, float]:
    """One driver, more hosts, more workspaces; the coefficients of the largest."""
    columns = ("create ms", "command ms", "driver KiB", "server KiB", "list ms/host")
    heads = (*columns, "attach ms/host", "idle %")
    print(f"\n{'hosts':>6} {'workspaces':>11}", *(f"{head:>14}" for head in heads))
    found: dict[str, float] = {}
    size = 2
    while size <= most:
        with hosts(size, tempfile.mkdtemp(dir=folder)) as urls:
            found = await grown(urls, 64 * size)
        values = [found[name] for name in _COEFFICIENTS]
        print(f"{size:6} {64 * size:11}", *(f"{one:14.2f}" for one in values), flush=True)
        size *= 2
    return found


async def grown(urls: list[str], count: int) -> dict[str, float]:
    """Costs of the driver with so many workspaces; times in ms of its CPU."""
    cpu = own_cpu()
    async with Fleet(urls) as fleet:
        attach = own_cpu() - cpu
        pids = await rows.server_pids(fleet)
        await rows.released(await rows.standing(fleet, len(urls)))
        here, there, cpu = memory_kib(), sum(map(memory_kib, pids)), own_cpu()
        spaces = await asyncio.gather(*(fleet.workspace(**rows.BARE) for _ in range(count)))
        create = own_cpu() - cpu
        driver_kib, server_kib = memory_kib() - here, sum(map(memory_kib, pids)) - there
        cpu = own_cpu()
        await asyncio.gather(*(space.run(rows.COMMAND) for space in spaces))
        command = own_cpu() - cpu
        cpu = own_cpu()
        assert len(await fleet.workspaces(owner=fleet.owner)) == count
        listed = own_cpu() - cpu
        cpu = own_cpu()
        await asyncio.sleep(5)
        idle = (own_cpu() - cpu) / 5 / (count + len(urls))
        await rows.released(list(spaces))
    return {
        "create": 1e3 * create / count, "command": 1e3 * command / count,
        "driver_kib": driver_kib / count, "server_kib": server_kib / count,
        "list": 1e3 * listed / len(urls), "attach": 1e3 * attach / len(urls), "idle": 100 * idle,
    }  # fmt: skip


def model(args: argparse.Namespace, each: dict[str, float], node: dict[str, float]) -> None:
    """A larger fleet on paper, by the coefficients above."""
    nodes, spaces, drivers = args.nodes, args.workspaces, args.drivers
    mine, lines = spaces / drivers, nodes + spaces / drivers
    parked = 0.2 * mine
    print(f"\n{nodes:,} nodes, {spaces:,} workspaces, {drivers} drivers, on paper:")
    lines_of = [
        ("groups, supervisors, servers, keepers", f"{nodes:,} of each"),
        ("control lines", f"{drivers} a node, {nodes:,} a driver"),
        ("data lines", f"{spaces / nodes:.0f} a node, {mine:,.0f} a driver; parked: {parked:,.0f}"),
        ("heartbeats", f"{nodes / 10:.0f}/s at the registrar"),
        ("driver, memory", f"{mine * each['driver_kib'] / 1024:.0f} MiB for its workspaces"),
        ("driver, idle", f"{lines * each['idle']:.1f} % of a core"),
        ("driver, 500 commands/s", f"{50 * each['command']:.0f} % of a core"),
        ("driver, commands/s at most", f"{1e3 / each['command']:,.0f} in workspaces that stand"),
        ("driver, fresh workspaces/s", f"{1e3 / (each['command'] + each['create']):,.0f} at most"),
        ("server, memory", f"{spaces / nodes * each['server_kib'] / 1024:.1f} MiB for workspaces"),
        ("attach", f"{nodes * each['attach'] / 1e3:.1f} s of the driver's CPU"),
        ("list", f"{nodes * each['list'] / 1e3:.1f} s of it"),
        ("Ray calls a workspace", "0"),
        ("template of 20 MB", f"{nodes * 0.02:.0f} GB, between nodes"),
    ]  # fmt: skip
    if node:
        mib = [node[f"{name}_pid"] for name in ("supervisor", "server", "keeper")]
        said = " + ".join(f"{one:.0f}" for one in mib)
        lines_of.insert(1, ("their memory", f"{said} MiB a node (supervisor, server, keeper)"))
        lines_of.insert(2, ("supervisor, idle", f"{100 * node['supervisor_cpu']:.2f} % of a core"))
    for name, value in lines_of:
        print(f"  {name:40} {value}")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer commands, one round")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a goal is missed")
    parser.add_argument("--hosts", type=int, default=16, help="the most of the growth")
    parser.add_argument("--nodes", type=int, default=1000, help="of the model")
    parser.add_argument("--workspaces", type=int, default=100_000, help="of the model")
    parser.add_argument("--drivers", type=int, default=20, help="of the model")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there")
    args = parser.parse_args()
    wanted = args.only.split(",")
    if not set(wanted) <= set(PARTS):
        parser.error(f"--only is some of {','.join(PARTS)}")
    report = Report(1 if args.quick else 3)
    count = rows.COUNT // 4 if args.quick else rows.COUNT
    node: dict[str, float] = {}
    each: dict[str, float] = {}
    # Not below the system's temporary directory, which commands in a sandbox may write.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = os.path.join(cache, "handrail", "bench")
    os.makedirs(place, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fleet-", dir=place) as folder:
        if "ray" in wanted:
            node = await beside_ray(report, folder, count)
        if "rex" in wanted:
            await beside_rex(report, folder, count)
        if "costs" in wanted:
            await costs(report, folder, count)
        if "growth" in wanted:
            each = await growth(folder, 4 if args.quick else args.hosts)
            model(args, each, node)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"rows": report.found, "node": node, "growth": each}, file, indent=1)
    if report.missed:
        print(f"\nmissed: {', '.join(report.missed)}")
    return 1 if args.strict and report.missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
