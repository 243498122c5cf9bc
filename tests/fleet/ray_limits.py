"""Scenarios of ``ray_world``: what tenants may have, and the end of a fleet that is in use."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
import ray

from handrail.fleet import Fleet, FleetUnknown, QuotaExceeded
from handrail.fleet.ray_engine import _answer
from tests.fleet.ray_world import World, until

PLAIN: dict[str, Any] = {"cpus": 1, "memory": "1MiB", "sandbox": "off"}


async def quotas_over_drivers(world: World) -> None:
    quotas = {"small": {"workspaces": 3}, "large": {"workspaces": 1000}}
    options = world.own(share={"cpus": 8, "memory": "32MiB"}, quotas=quotas)
    name = "quotas"
    async with Fleet(world.where, name=name, tenant="small", **options) as one:
        await one.wait(world.count, timeout=90)
        async with await Fleet.attach(name, world.where, tenant="small") as two:
            spaces = [await one.workspace(**PLAIN), await one.workspace(**PLAIN)]
            left = await two.workspace(**PLAIN)
            await left.run("sleep 0.6")  # longer than a count of the nodes is good for a map
            for fleet in (one, two):
                with pytest.raises(QuotaExceeded) as refused:
                    await fleet.workspace(**PLAIN)
                assert (refused.value.what, refused.value.limit, refused.value.used) == (
                    "workspaces",
                    3,
                    3,
                )
            await spaces[0].release()
            await two.workspace(**PLAIN)  # at once
            with pytest.raises(QuotaExceeded):
                await one.workspace(**PLAIN)
            await left.detach()  # what has no driver counts on its node, until it is swept
            assert await one.sweep(owner=two.owner) == 2
            await one.workspace(**PLAIN)
        async with await Fleet.attach(name, world.where, tenant="large") as other:
            await asyncio.gather(*(other.workspace(**PLAIN) for _ in range(6)))
        await one.down()


async def a_call_that_was_left_says_nothing(world: World) -> None:
    """A driver that is closed leaves calls of its registrar, which fail when the fleet ends."""
    said: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context))
    try:
        signal = ray.remote(Signal).remote()
        ref = signal.wait.remote()
        with pytest.raises(TimeoutError):
            await _answer(ref, 0.1)
        ray.kill(signal)
        with pytest.raises(ray.exceptions.ActorDiedError):
            await ref
        await asyncio.sleep(0)
        gc.collect()
        assert [one for one in said if "Signal" in str(one.get("exception"))] == []
    finally:
        loop.set_exception_handler(None)


class Signal:
    """An actor that never answers."""

    async def wait(self) -> None:
        await asyncio.Event().wait()


async def the_end_of_a_fleet_in_use(world: World) -> None:
    """Whatever waits is told at once, and nothing raises an error of Ray."""
    options = world.own(share={"cpus": 2, "memory": "32MiB"})
    name = "ended"

    async def work(space: Any, number: int) -> int:
        await space.run("sleep 600")
        return number

    async with Fleet(world.where, name=name, **options) as fleet:
        await fleet.wait(world.count, timeout=90)
        room = 2 * world.count
        mapped = asyncio.ensure_future(
            fleet.gather(work, range(2 * room), concurrency=2 * room, patience=1e6, **PLAIN)
        )

        async def full() -> bool:
            return (await fleet.status()).workspaces == room

        await until(full)
        waiting = asyncio.ensure_future(fleet.workspace(timeout=1e6, **PLAIN))
        more = asyncio.ensure_future(fleet.wait(world.count + 1, timeout=1e6))
        other = await Fleet.attach(name, world.where)
        await other.down()
        for one in (waiting, more):
            with pytest.raises(FleetUnknown):
                await one
        outcomes = await mapped
        assert all(outcome.infra for outcome in outcomes)
        assert sum(outcome.state == "lost" for outcome in outcomes) == room
        status = await fleet.status()
        assert ({node.state for node in status.nodes}, status.state) == ({"gone"}, "stopping")
        with pytest.raises(FleetUnknown):
            await fleet.put(Path(__file__).parent)
