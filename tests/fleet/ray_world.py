"""A program with a Ray cluster of a few nodes on this machine, which runs scenarios by their names.

It is a process of its own, because servers of a fleet outlive what starts them: it adopts orphans,
as the process of the tests does, and takes them along.  One line in, the names of scenarios:
those of the standing fleet and the others; one line out for each that has ended, with its name and
what went wrong.  They mostly wait, so some run at the same time: those of the standing fleet one
after the other, the others beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import json
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TextIO

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Workers that Ray would start in case they are needed; a fleet needs one a node.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
os.environ.setdefault("RAY_enable_worker_prestart", "0")

import ray
from ray.cluster_utils import Cluster

from handrail.fleet import Fleet

_PR_SET_CHILD_SUBREAPER = 36
SHARE = {"cpus": 20, "memory": "64MiB"}
#: How many scenarios with fleets of their own run at a time.
LANES = 2
LIMIT = 150.0


class World:
    """A head, some nodes, and a standing fleet."""

    def __init__(self, count: int) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="handrail-fleet-", dir="/var/tmp"))
        store = {"object_store_memory": 80 * 2**20}  # the least that Ray takes
        head = {"num_cpus": 1, "include_dashboard": False, **store}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}
        self._store = store
        self._work: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue()
        self.count = count
        for number in range(count):
            self._add({"base": "yes", "for": "fleet", "zone": f"z{number}"}, wait=False)
        self.cluster.wait_for_nodes(timeout=90)
        ray.init(address=self.cluster.address, logging_level="ERROR", log_to_driver=False)
        self.where = f"ray:{self.cluster.address}"
        self.name = "standing"

    def _add(self, labels: dict[str, str], **how: Any) -> str:
        node = self.cluster.add_node(num_cpus=40, labels=labels, **self._store, **how)
        self._nodes[node.node_id] = node
        return str(node.node_id)

    async def _in_main(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call in the main thread: Ray makes nodes nowhere else."""
        done: Future[Any] = Future()
        self._work.put((done, partial(call, *given, **named)))
        return await asyncio.wrap_future(done)

    def serve(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it in a thread, and meanwhile what it wants to be done in this one."""

        def run() -> None:
            try:
                asyncio.run(coroutine)
            finally:
                self._work.put(None)

        thread = threading.Thread(target=run)
        thread.start()
        while (found := self._work.get()) is not None:
            done, call = found
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(call())
            except Exception as error:  # noqa: BLE001 (its caller gets it)
                done.set_exception(error)
        thread.join()

    async def add_node(
        self, *, standing: bool = True, env: dict[str, str] | None = None, **labels: str
    ) -> str:
        """One machine more, for the standing fleet or not; its Ray id."""
        mark = {"for": "fleet"} if standing else {}
        return str(await self._in_main(self._add, {**mark, **labels}, env_vars=env))

    async def drop_node(self, engine_id: str) -> None:
        """Take it from Ray; its server is a process of its own, and goes on."""
        await self._in_main(self.cluster.remove_node, self._nodes.pop(engine_id))

    async def lose(self, info: Any) -> None:
        """The machine is gone: Ray's part of it, the server, the keeper and all they started."""
        doomed = _family([info.server_pid, info.keeper_pid])
        await self.drop_node(info.engine_id)
        for pid in doomed:
            kill(pid)

    def own(self, **more: Any) -> dict[str, Any]:
        """Arguments of a fleet on the machines that stay."""
        state = tempfile.mkdtemp(dir=self.scratch)
        found = {"share": SHARE, "min_free": 0, "labels": {"base": "yes"}, "state_dir": state}
        return {**found, **more}

    async def begin(self) -> None:
        options = self.own(labels={"for": "fleet"})
        async with Fleet(self.where, name=self.name, **options) as fleet:
            await fleet.wait(self.count, timeout=90)

    async def join(self, **more: Any) -> Fleet:
        return await Fleet.attach(self.name, self.where, **more)

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await (await self.join()).down()

    def end(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()
        shutil.rmtree(self.scratch, ignore_errors=True)


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _family(pids: list[int]) -> list[int]:
    """These processes and all below them."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat") as file:
            parent = int(file.read().rsplit(")", 1)[1].split()[1])
            parents.setdefault(parent, []).append(int(name))
    found = list(pids)
    for pid in found:
        found += parents.get(pid, [])
    return found


async def until(condition: Any, seconds: float = 60.0) -> Any:
    """Wait until it gives something true."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"still not: {condition}"
        await asyncio.sleep(0.05)


async def node_of(fleet: Fleet, name: str) -> Any:
    return next(node for node in (await fleet.status()).nodes if node.id == name)


async def run_all(world: World, chosen: list[list[str]], answers: TextIO) -> None:
    """Run scenarios, and tell of each that has ended."""
    from tests.fleet import ray_limits, ray_scenarios

    known = {**vars(ray_scenarios), **vars(ray_limits)}

    standing, own = map(deque, chosen)

    async def lane(waiting: deque[str]) -> None:
        while waiting:
            name = waiting.popleft()
            try:
                async with asyncio.timeout(LIMIT):
                    await known[name](world)
                trouble = None
            except Exception:  # noqa: BLE001 (the tests are told)
                trouble = traceback.format_exc()
            print(json.dumps([name, trouble]), file=answers, flush=True)

    await world.begin()
    await asyncio.gather(lane(standing), *(lane(own) for _ in range(LANES)))


def main() -> None:
    faulthandler.enable()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    chosen = json.loads(sys.stdin.readline())
    world = World(int(sys.argv[1]))

    async def until_left() -> None:
        running = asyncio.create_task(run_all(world, chosen, answers))
        left = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait((running, left), return_when=asyncio.FIRST_COMPLETED)
        if left.done():
            running.cancel()
        await asyncio.wait((running,))
        await world.close()
        await left

    try:
        world.serve(until_left())
    finally:
        world.end()


if __name__ == "__main__":
    main()
