"""Kills `handrail fleet run` at random moments, resumes it, and counts how often each task ran.

    .venv/bin/python tests/fleet/tasks/killed_runs.py --kills 20 [--ray]

On two servers of its own, or on a Ray cluster of four simulated nodes.  The last line is a JSON
object; the exit code is 1 unless every task ran once, has a result, and nothing is left: no
workspace, and of a fleet on Ray after ``down`` no process, actor, group or directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HANDRAIL = [sys.executable, "-P", "-m", "handrail"]
LIMIT = 120


@contextlib.contextmanager
def hosts(folder: Path, count: int = 2) -> Iterator[list[str]]:
    """Servers with workspaces on this machine; their URLs."""
    servers = []
    try:
        for number in range(count):
            words = ["serve", "--log-level", "error", "--state-dir", str(folder / f"s{number}")]
            words += ["--workspaces", str(folder / f"w{number}"), "--min-free", "16MiB"]
            words += ["--share", "cpus=100,memory=4GiB"]
            servers.append(subprocess.Popen([*HANDRAIL, *words], stdout=subprocess.PIPE, text=True))
        urls = []
        for server in servers:
            assert server.stdout is not None
            urls.append(server.stdout.readline().strip())
        assert all(urls), "a server did not start"
        yield urls
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            with server:
                server.wait(30)


class KilledRuns:
    """A file of tasks, and the runs on it."""

    def __init__(self, folder: Path, where: list[str], tasks: int, seconds: float) -> None:
        self.count = tasks
        self.ran = folder / "ran"
        self.results = folder / "out.jsonl"
        with open(folder / "tasks.jsonl", "w") as file:
            file.writelines(
                json.dumps({"id": f"t{number}", "n": number}) + "\n" for number in range(tasks)
            )
        script = f"echo {{id}} >> {self.ran}; sleep {seconds}; echo {{n}}"
        self.where = where
        self.command = [*HANDRAIL, "fleet", "run", *where, "--tasks", str(folder / "tasks.jsonl")]
        self.command += ["--results", str(self.results), "--concurrency", "8", "--cpus", "1"]
        self.command += ["--memory", "1MiB", "--sandbox", "off", "--json"]
        self.command += ["--", "sh", "-c", script]

    def kill_after(self, more: int, delay: float) -> None:
        """Start a run, let it begin ``more`` tasks (or end), wait, and kill it."""
        begun = len(self.lines(self.ran)) + more
        run = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + LIMIT
        while len(self.lines(self.ran)) < begun and run.poll() is None:
            assert time.monotonic() < deadline, "no task begins"
            time.sleep(0.005)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Run to the end; the exit code and the summary."""
        done = subprocess.run(
            self.command, capture_output=True, text=True, timeout=LIMIT * 2, check=False
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def left(self) -> list[str]:
        """Workspaces that are still on the nodes."""
        words = [*HANDRAIL, "fleet", "ls", *self.where, "--json"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()

    def times(self) -> Counter[str]:
        """How often each task ran."""
        return Counter(self.lines(self.ran))

    def states(self) -> Counter[str]:
        """The results by their state."""
        found = [json.loads(line) for line in self.lines(self.results)]
        assert len({one["id"] for one in found}) == len(found), "two results of one task"
        return Counter(one["state"] for one in found)

    @staticmethod
    def lines(path: Path) -> list[str]:
        return path.read_text().splitlines() if path.exists() else []


@contextlib.contextmanager
def on_ray(folder: Path, left: list[str], nodes: int = 4) -> Iterator[list[str]]:
    """A fleet on simulated nodes; what is there after its end goes to ``left``."""
    import ray
    from ray.cluster_utils import Cluster
    from ray.util import list_named_actors
    from ray.util.placement_group import placement_group_table

    small = {"object_store_memory": 80 * 2**20}
    head = {"num_cpus": 0, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            cluster.add_node(wait=False, num_cpus=16, labels={"for": "kills"}, **small)
        cluster.wait_for_nodes(timeout=LIMIT)
        fleet = ["--on", f"ray:{cluster.address}", "--name", f"kills-{os.getpid()}"]
        share = ["--share", "cpus=16,memory=256MiB", "--min-free", "16MiB", "--label", "for=kills"]
        place = ["--state-dir", str(folder / "state"), "--nodes", str(nodes), "--timeout", "120"]
        status = _json("up", *fleet, *share, *place)
        yield fleet
        _json("down", *fleet)
        pids = [node[name] for node in status["nodes"] for name in ("serverPid", "keeperPid")]
        deadline = time.monotonic() + 30
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        left += [f"process {pid}" for pid in pids if os.path.exists(f"/proc/{pid}")]
        left += [str(path) for path in (folder / "state").rglob("*") if path.is_file()]
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        left += [f"actor {one}" for one in list_named_actors(all_namespaces=True)]
        groups = placement_group_table().values()
        left += [f"group {one['name']}" for one in groups if one["state"] != "REMOVED"]
        ray.shutdown()
    finally:
        cluster.shutdown()


def _json(*words: str) -> Any:
    done = subprocess.run(
        [*HANDRAIL, "fleet", *words, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--ray", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_enable_worker_prestart", "0")
    chance = random.Random(args.seed)
    left: list[str] = []
    with tempfile.TemporaryDirectory(prefix="killed-runs-") as name:
        folder = Path(name)
        with contextlib.ExitStack() as stack:
            if args.ray:
                words = stack.enter_context(on_ray(folder, left))
            else:
                words = ["--on", *stack.enter_context(hosts(folder))]
            runs = KilledRuns(folder, words, tasks=12 * args.kills, seconds=0.4)
            for number in range(args.kills):
                runs.kill_after(chance.randrange(12), chance.uniform(0, 0.5))
                print(f"kill {number + 1}: {len(runs.times())} begun, {runs.states()}", flush=True)
            code, summary = runs.finish()
            left += runs.left()
        twice = [task for task, times in runs.times().items() if times > 1]
        found = {
            "seed": args.seed, "kills": args.kills, "exit": code, "twice": len(twice),
            "never": runs.count - len(runs.times()), "left": left, **summary,
        }  # fmt: skip
        print(json.dumps(found))
        good = not twice and not found["never"] and not left and code == 0
        return 0 if good and sum(runs.states().values()) == runs.count else 1


if __name__ == "__main__":
    sys.exit(main())
