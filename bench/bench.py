"""Protocol benchmark of exec-servers, several side by side in one run.

bench.py --server NAME='command with {port}' [--server ...] --json out.json
The repetitions are interleaved (A B A B ...) so that noise of the machine hits all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import traceback
from typing import Any

import peers
import uvloop
import wire
from limits import Limits
from proc import Server, ServerFailed
from report import merge, render
from workloads import WORKLOADS, Workload
from workloads.context import MIB, Context, Metrics

HERE = os.path.dirname(os.path.abspath(__file__))


class Run:
    """One run of the benchmark: its servers, its options, and what was found so far."""

    def __init__(self, options: argparse.Namespace, state: str, scratch: str) -> None:
        self.options = options
        self.state = state
        self.scratch = scratch
        self.env = {**os.environ, "BENCH_STATE": state, "CODEX_HOME": os.path.join(state, "home")}
        self.servers = [Server(*server.split("=", 1), self.env) for server in options.server]
        self.python = options.python or shutil.which("python3") or sys.executable
        self.began = wire.now()
        self.results: dict[str, Any] = {}
        self.meta = {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load_before": os.getloadavg(),
            "servers": [server.name for server in self.servers],
            "versions": dict(text.split("=", 1) for text in options.version),
            "quick": options.quick,
        }

    def note(self, *words: object) -> None:
        """Say how far it is."""
        print(f"[{wire.now() - self.began:6.1f}s]", *words, file=sys.stderr, flush=True)

    def save(self) -> None:
        """Write what there is, so that an interrupted run is not lost."""
        self.meta["load_after"] = os.getloadavg()
        self.meta["seconds"] = round(wire.now() - self.began, 1)
        if self.options.json:
            with open(self.options.json, "w") as f:
                json.dump({"meta": self.meta, "results": self.results}, f, indent=1)

    async def everything(self) -> None:
        """The floor before and after, in between each workload on each server."""
        options = self.options
        chosen = options.only.split(",") if options.only else ["startup", *WORKLOADS]
        skipped = options.skip.split(",")
        floor: list[Metrics] = []
        if not options.no_limits:
            limits = Limits(self.state, options.quick)
            self.note("limits, first pass")
            floor.append(await limits.measure())
        if "startup" in chosen and self.servers:
            await self.startup()
        for name in chosen:
            if name in WORKLOADS and name not in skipped:
                await self.workload(name, WORKLOADS[name])
        if options.swerex:
            self.swerex()
        if options.oneshot:
            self.oneshot()
        if not options.no_limits:
            for _ in range(0 if options.quick else 2):
                floor.append(await limits.measure())
            self.results["limits"] = {"limits": merge(floor)}
            self.note("limits done")
        self.save()

    async def startup(self) -> None:
        """From the launch to the first handshake."""
        found: dict[str, list[Metrics]] = {server.name: [] for server in self.servers}
        for _ in range(3 if self.options.quick else 7):
            for server in self.servers:
                if not server.external:
                    found[server.name].append(await start_once(server))
        self.results["startup"] = {name: merge(metrics) for name, metrics in found.items()}

    async def workload(self, name: str, workload: Workload) -> None:
        """One workload on all servers, which live as long as it lasts."""
        options = self.options
        count = 1 if options.quick else max(1, round(workload.repetitions * options.reps))
        found: dict[str, list[Metrics]] = {server.name: [] for server in self.servers}
        live: list[Server] = []
        try:
            for server in self.servers:
                server.launch()
                live.append(server)
                server.wait_port()
            await asyncio.sleep(0.1)
            for repetition in range(count):
                for server in live if repetition % 2 == 0 else live[::-1]:
                    metrics = await self.repetition(workload, server, repetition)
                    found[server.name].append(metrics)
        finally:
            for server in live:
                server.stop()
        self.results[name] = {server: merge(metrics) for server, metrics in found.items()}
        self.note(name, json.dumps({k: wrong(v) for k, v in self.results[name].items()}))
        self.save()

    async def repetition(self, workload: Workload, server: Server, number: int) -> Metrics:
        """One repetition; what goes wrong is part of the result."""
        options = self.options
        context = Context(server, self.scratch, number, options.quick, self.python)
        gc.collect()
        try:
            limit = max(options.limit, workload.limit)
            return await asyncio.wait_for(workload.run(context), limit)
        except Exception as e:
            if options.verbose:
                traceback.print_exc()
            metrics = failure(e)
        code = server.ended()
        if code is not None:
            metrics["error.crash"] = f"server ended with {code}"
            server.launch()
            server.wait_port()
        return metrics

    def swerex(self) -> None:
        """The peer of that name."""
        found = []
        for _ in range(1 if self.options.quick else 2):
            try:
                found.append(peers.swerex(self.options.swerex, self.env, self.options.quick))
            except Exception as e:
                found.append(failure(e))
        self.results["swerex"] = {"swerex": merge(found)}

    def oneshot(self) -> None:
        """Commands that run something once."""
        commands = dict(command.split("=", 1) for command in self.options.oneshot)
        found: dict[str, list[Metrics]] = {name: [] for name in commands}
        folder = os.path.join(self.scratch, "ws")
        os.makedirs(folder, exist_ok=True)
        for _ in range(1 if self.options.quick else 2):
            for name, command in commands.items():
                try:
                    metrics = peers.oneshot(command, self.env, folder, self.options.quick)
                except Exception as e:
                    metrics = failure(e)
                found[name].append(metrics)
        self.results["oneshot"] = {name: merge(metrics) for name, metrics in found.items()}


async def start_once(server: Server) -> Metrics:
    """Launch a server, shake hands, weigh it, stop it."""
    server.launch()
    try:
        server.wait_port()
        listening = wire.now()
        connection = await wire.connect(server.url)
        await connection.initialize()
        initialized = wire.now()
        await asyncio.sleep(0.2)
        fds, threads = server.fds_threads()
        metrics: Metrics = {
            "listen_ms": (listening - server.launched_at) * 1e3,
            "initialized_ms": (initialized - server.launched_at) * 1e3,
            "rss_MiB": server.rss() / MIB,
            "threads": threads,
            "fds": fds,
            "cpu_ms": server.cpu()[0] * 1e3,
        }
        await connection.close()
        return metrics
    finally:
        server.stop()


def failure(error: Exception) -> Metrics:
    """A repetition that raised."""
    return {"error": f"{type(error).__name__}: {error}"[:300]}


def wrong(metrics: Metrics) -> Metrics:
    """What of a result should not be there."""
    return {key: value for key, value in metrics.items() if key.startswith(("BAD", "error"))}


def parse_options() -> argparse.Namespace:
    """The command line."""
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--server", action="append", default=[], metavar="NAME=CMD|ws://URL")
    ap.add_argument("--json", metavar="FILE", help="write all figures there")
    names = "startup," + ",".join(WORKLOADS)
    ap.add_argument("--only", metavar="A,B", help=f"comma-separated workloads: {names}")
    ap.add_argument("--skip", default="", metavar="A,B", help="workloads to leave out")
    ap.add_argument("--reps", type=float, default=1.0, help="factor on the repetitions")
    ap.add_argument("--limit", type=float, default=120, help="seconds per repetition")
    ap.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    ap.add_argument("--no-limits", action="store_true", help="do not measure the floor")
    ap.add_argument("--swerex", metavar="CMD", help="swerex-remote command with {port}")
    ap.add_argument("--oneshot", action="append", default=[], metavar="NAME=CMD")
    ap.add_argument("--python", metavar="PATH", help="the Python that children run")
    ap.add_argument("--state", metavar="DIR", default=os.path.join(HERE, ".state"))
    ap.add_argument("--version", action="append", default=[], metavar="NAME=TEXT")
    ap.add_argument("--verbose", action="store_true", help="print tracebacks")
    ap.add_argument("--render", metavar="JSON", help="only print the tables of an earlier result")
    return ap.parse_args()


async def main(options: argparse.Namespace) -> None:
    """Make the folders, run, print."""
    state = os.path.abspath(options.state)
    os.makedirs(os.path.join(state, "home"), exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="scratch", dir=state)
    run = Run(options, state, scratch)
    try:
        await run.everything()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(render(run.results))


if __name__ == "__main__":
    # Clients are cut off on purpose; their libraries need not report each.
    logging.getLogger("aiofastnet").setLevel(logging.ERROR)
    logging.getLogger("picows").setLevel(logging.ERROR)
    arguments = parse_options()
    if arguments.render:
        with open(arguments.render) as f:
            print(render(json.load(f)["results"]))
    else:
        try:
            uvloop.run(main(arguments))
        except ServerFailed as e:
            sys.exit(str(e))
