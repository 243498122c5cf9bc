"""The rows of bench/fleet.py: each measures a pair of things, one after the other, once."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fleet_costs import cpu_seconds, memory_kib, own_cpu

from handrail.fleet import Fleet, FleetWorkspace

LANES = 32
NEEDS = {"cpus": 0.1, "memory": "1MiB"}
BARE = {**NEEDS, "sandbox": "off"}
COMMAND = ["true"]
#: Commands of one measurement; ``--quick`` makes it less.
COUNT = 640
#: Turns of a round beside SWE-ReX.
REX_TURNS = 5


async def standing(fleet: Fleet, count: int = LANES, **how: Any) -> list[FleetWorkspace]:
    """So many workspaces, each warmed up by one command."""
    spaces = await asyncio.gather(*(fleet.workspace(**{**BARE, **how}) for _ in range(count)))
    await asyncio.gather(*(space.run(COMMAND) for space in spaces))
    return spaces


async def released(spaces: list[FleetWorkspace]) -> None:
    await asyncio.gather(*(space.release() for space in spaces))


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def in_lanes(spaces: list[FleetWorkspace], count: int) -> None:
    """Commands on as many lanes as there are workspaces."""

    async def lane(space: FleetWorkspace) -> None:
        for _ in range(count // len(spaces)):
            assert (await space.run(COMMAND)).exit_code == 0

    await asyncio.gather(*map(lane, spaces))


async def mapped(fleet: Fleet, count: int) -> None:
    """As many tasks, a fresh workspace each."""

    async def work(space: FleetWorkspace, _: int) -> int | None:
        return (await space.run(COMMAND)).exit_code

    async for outcome in fleet.map(work, range(count), concurrency=LANES, **BARE):
        assert outcome.value == 0, outcome


# --- beside plain Ray tasks --------------------------------------------------------------------


class PlainRay:
    """Ray tasks that run a command: in the worker's directory, or in a fresh one."""

    def __init__(self) -> None:
        import ray

        @ray.remote(num_cpus=1)
        def command() -> int:
            return subprocess.run(COMMAND, check=False).returncode

        @ray.remote(num_cpus=1)
        def fresh() -> tuple[int, bytes]:
            place = tempfile.mkdtemp()
            try:
                done = subprocess.run(COMMAND, check=False, capture_output=True, cwd=place)
                return done.returncode, done.stdout
            finally:
                shutil.rmtree(place)

        self._ray, self._command, self._fresh = ray, command, fresh

    async def commands(self, count: int) -> None:
        await asyncio.to_thread(self._get, self._command, count)

    async def fresh(self, count: int) -> None:
        await asyncio.to_thread(self._get, self._fresh, count)

    def _get(self, task: Any, count: int) -> None:
        self._ray.get([task.remote() for _ in range(count)])


async def against_ray(fleet: Fleet, plain: PlainRay, count: int) -> dict[str, float]:
    """Commands a second in standing workspaces and fresh ones, as ratios to plain Ray tasks."""
    spaces = await standing(fleet)
    ours = await timed(lambda: in_lanes(spaces, count))
    theirs = await timed(lambda: plain.commands(count))
    await released(spaces)
    fresh = await timed(lambda: mapped(fleet, count))
    their_fresh = await timed(lambda: plain.fresh(count))
    return {"commands / Ray tasks": theirs / ours, "map / Ray tasks": their_fresh / fresh}


async def map_and_standing(fleet: Fleet, count: int) -> dict[str, float]:
    spaces = await standing(fleet)
    commands = await timed(lambda: in_lanes(spaces, count))
    await released(spaces)
    fresh = await timed(lambda: mapped(fleet, count))
    return {"map / standing workspaces": commands / fresh}


# --- beside SWE-ReX ------------------------------------------------------------------------------


async def against_rex(fleet: Fleet, rex: Any, count: int) -> dict[str, float]:
    """In turns of a few tenths of a second, so that other work meets both sides alike."""
    spaces = await standing(fleet)
    many = their_many = one = their_one = 0.0
    for _ in range(REX_TURNS):
        many += await timed(lambda: in_lanes(spaces, count))
        their_many += await asyncio.to_thread(rex.seconds, LANES, count)
        one += await timed(lambda: in_lanes(spaces[:1], count // 8))
        their_one += await asyncio.to_thread(rex.seconds, 1, count // 8)
    await released(spaces)
    return {
        "commands / SWE-ReX, 32 at a time": their_many / many,
        "one at a time": their_one / one,
    }


# --- costs ---------------------------------------------------------------------------------------


async def first_and_later(fleet: Fleet, count: int) -> dict[str, float]:
    """Server CPU of the first sandboxed command in a fresh workspace, beside later ones."""
    pids = await server_pids(fleet)
    # What a server does once, such as loading its modules, is not the subject.
    await released(await standing(fleet, 4 * len(pids), sandbox="workspace-write"))
    first = later = 0.0
    number = max(8, count // 40)
    for _ in range(number):
        space = await fleet.workspace(**NEEDS)
        before = cpu_seconds(*pids)
        await space.run(COMMAND, check=True)
        middle = cpu_seconds(*pids)
        await space.run(COMMAND, check=True)
        await space.run(COMMAND, check=True)
        first += middle - before
        later += (cpu_seconds(*pids) - middle) / 2
        await space.release()
    return {"sandboxed: first / later, server CPU": first / later}


async def driver_cpu(fleet: Fleet, count: int) -> dict[str, float]:
    """Milliseconds of this process for a command, and for a fresh workspace."""
    spaces = await standing(fleet)
    before = own_cpu()
    await in_lanes(spaces, count)
    command = (own_cpu() - before) / count
    await released(spaces)
    before = own_cpu()
    made = await asyncio.gather(*(fleet.workspace(**BARE) for _ in range(count // 2)))
    create = (own_cpu() - before) / len(made)
    await released(list(made))
    return {"driver CPU, ms: a command": 1e3 * command, "a fresh workspace": 1e3 * create}


async def warm_and_cold(fleet: Fleet, folder: str) -> dict[str, float]:
    """A workspace of 1,000 files and 20 MB, from a pool and not."""
    template = os.path.join(folder, "template")
    if not os.path.exists(template):
        for number in range(1000):
            path = os.path.join(template, f"d{number % 20}", f"f{number}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(os.urandom(20_000))
    digest = await fleet.put(template)
    # By digest: a path is looked at each time, file by file, before its digest is known.
    wish = {**BARE, "template": f"sha256:{digest}"}

    async def ready(size: int) -> None:
        """The pool is full again, and what was released is gone: nothing else goes on."""
        while True:
            nodes = (await fleet.status()).nodes
            if sum(node.pools.get(digest, 0) for node in nodes) == size:
                return
            await asyncio.sleep(0.05)

    async def one(size: int) -> float:
        await ready(size)
        began = time.perf_counter()
        space = await fleet.workspace(**wish)
        spent = time.perf_counter() - began
        assert space.warm == (size > 0)
        await space.release()
        return spent

    cold = [await one(0) for _ in range(5)]
    await fleet.pool(template, 4)
    warm = [await one(4) for _ in range(5)]
    await fleet.pool(template, 0)
    return {"warm / cold": statistics.median(warm) / statistics.median(cold)}


async def idle_memory(fleet: Fleet, count: int) -> dict[str, float]:
    """KiB of an idle workspace, in this process and in the servers."""
    pids = await server_pids(fleet)
    number = count
    await released(await standing(fleet, min(64, number)))
    here, there = memory_kib(), sum(map(memory_kib, pids))
    spaces = await asyncio.gather(*(fleet.workspace(**BARE) for _ in range(number)))
    found = {
        "KiB of an idle workspace: driver": (memory_kib() - here) / number,
        "server": (sum(map(memory_kib, pids)) - there) / number,
    }
    await released(list(spaces))
    return found


async def server_pids(fleet: Fleet) -> list[int]:
    return [node.server_pid for node in (await fleet.status()).nodes if node.server_pid]
