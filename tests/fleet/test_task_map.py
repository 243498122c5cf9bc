"""``map`` and ``gather``: order, window, errors, time limits, and the blocking fleet."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from handrail.errors import UsageError
from handrail.fleet import (
    Fleet,
    FleetWorkspace,
    NoCapacity,
    NodeUnreachable,
    Outcome,
    QuotaExceeded,
    SyncFleet,
)
from handrail.fleet.placing import Wish
from handrail.fleet.settings import Amounts
from handrail.fleet.synchronous import SyncFleetWorkspace
from handrail.fleet.task_map import MapOptions, TaskMap
from tests.fleet.support import PLAIN, SMALL, Swallower, fleet_of, host, hosts, until
from tests.support.eventually import LIMIT, eventually_so


async def test_every_task_has_a_fresh_workspace_and_outcomes_come_as_asked(tmp_path: Path) -> None:
    seen: list[dict[str, int]] = []

    async def work(space: Any, number: int) -> str:
        if number % 10 == 3:
            raise ValueError(f"task {number}")
        script = f"ls; echo x > x; sleep {0.5 if number == 0 else 0}; exit {number % 2}"
        got = await space.run(script)
        return f"{got.stdout}{got.exit_code}"

    async def source() -> AsyncIterator[int]:
        for number in range(30):
            yield number

    async with hosts(tmp_path) as servers:
        async with fleet_of(servers) as fleet:
            how = {"concurrency": 6, **PLAIN}
            outcomes = await fleet.gather(work, source(), progress=seen.append, key=str, **how)
            assert [o.index for o in outcomes] == list(range(30))
            assert len({o.node for o in outcomes}) == 2
            for one in outcomes:
                assert one.key == str(one.index)
                if one.index % 10 == 3:
                    assert (one.state, one.infra) == ("failed", False)
                    assert str(one.error) == f"task {one.index}"
                else:
                    assert (one.ok, one.value, one.attempts) == (True, str(one.index % 2), 1)
            assert seen[-1] == {
                "taken": 30,
                "running": 0,
                "ok": 27,
                "failed": 3,
                "lost": 0,
                "retried": 0,
            }
            came = [o.index async for o in fleet.map(work, range(12), **how)]
            assert sorted(came) == list(range(12))
            assert came[0] != 0
            for wrong in ({"concurrency": 0}, {"id": "one-for-all"}):
                with pytest.raises(UsageError):
                    fleet.map(work, range(3), **wrong, **PLAIN)


async def test_a_slow_reader_stops_the_pulling_and_leaving_ends_what_runs(tmp_path: Path) -> None:
    pulled = 0

    def source() -> Iterator[int]:
        nonlocal pulled
        while True:
            pulled += 1
            yield pulled

    async def work(space: Any, number: int) -> int:
        await space.run(["true"] if number < 20 else ["sleep", "600"])
        return number

    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers) as fleet:
            outcomes = fleet.map(work, source(), concurrency=3, window=5, **PLAIN)
            consumed = 0
            async with aclosing(outcomes):
                async for _ in outcomes:
                    consumed += 1
                    await asyncio.sleep(0.02)
                    assert pulled - consumed <= 5
                    if consumed == 19:
                        break

            async def none() -> bool:
                return not await fleet.workspaces()

            await until(none)


@pytest.mark.fault
async def test_a_workspace_that_is_made_late_does_not_outlive_its_map(tmp_path: Path) -> None:
    """Its release, on the control line, is quicker than its making."""
    async with hosts(tmp_path, 1) as servers:
        (server,) = servers
        async with Swallower(int(server.url.rpartition(":")[2])) as line:
            direct = iter([server.url])  # for the control line
            async with fleet_of(servers, via=lambda _: next(direct, line.url)) as fleet:

                async def work(space: Any, number: int) -> int:
                    if number:
                        line.swallow()
                    return number

                async def released() -> bool:
                    name = 'handrail_requests_total{method="workspace/release",result="success"}'
                    return (await asyncio.to_thread(server.metrics)).get(name, 0.0) >= 2

                outcomes = fleet.map(work, count(), concurrency=1, **PLAIN)
                for number in range(2):
                    assert (await anext(outcomes)).value == number
                await asyncio.wait_for(line.holds.wait(), LIMIT)  # that of task 2 is asked for
                leaving = asyncio.ensure_future(outcomes.aclose())
                await until(released)  # that of task 1, and that of task 2, which is not yet made
                line.deliver()
                await leaving

                async def none() -> bool:
                    return not await fleet.workspaces()

                await until(none)


@pytest.mark.fault
async def test_a_task_that_is_cancelled_by_itself_fails_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async def work(space: Any, number: int) -> int:
        if number == 1:
            raise asyncio.CancelledError
        return number

    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers) as fleet:
            outcomes = await fleet.gather(work, range(3), concurrency=1, **PLAIN)
            assert [one.state for one in outcomes] == ["ok", "failed", "ok"]
            assert isinstance(outcomes[1].error, asyncio.CancelledError)
            assert not outcomes[1].infra


async def test_what_a_function_for_tasks_raises_ends_the_map(tmp_path: Path) -> None:
    def key(number: int) -> str:
        if number == 5:
            raise KeyError(number)
        return str(number)

    async def work(space: Any, number: int) -> int:
        return number

    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers) as fleet:
            for ordered in (False, True):
                outcomes = fleet.map(
                    work, count(), key=key, ordered=ordered, concurrency=2, window=3, **PLAIN
                )
                seen = []
                with pytest.raises(KeyError):
                    async with asyncio.timeout(LIMIT):
                        async for one in outcomes:
                            seen.append(one.index)
                assert sorted(seen)[:5] == list(range(5))


async def test_an_outcome_without_a_workspace_names_no_node() -> None:
    line = Mock(settle=AsyncMock(), close=AsyncMock())
    space = Mock(node="a", line=line, release=AsyncMock(), pass_on=Mock(return_value=False))
    full = NoCapacity("full", reason="cpus")
    placing = Mock(place=AsyncMock(side_effect=[space, full]))
    wish = Wish(amounts=Amounts(), tenant="t", lease=1.0)
    run = TaskMap(
        placing,
        AsyncMock(return_value=7),
        range(2),
        AsyncMock(return_value=wish),
        MapOptions(concurrency=1),
        lambda _: None,
    )
    outcomes = [outcome async for outcome in run.run()]
    assert [(o.state, o.node, o.error) for o in outcomes] == [
        ("ok", "a", None),
        ("failed", None, full),
    ]


async def test_a_task_beyond_its_time_fails(tmp_path: Path) -> None:
    async def work(space: Any, number: int) -> None:
        await space.run("sleep 600")

    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers) as fleet:
            (one,) = await fleet.gather(work, [0], timeout=0.3, labels={"l": "m"}, **PLAIN)
            assert (one.state, one.infra) == ("failed", False)
            assert isinstance(one.error, TimeoutError)


async def test_a_task_of_a_lost_host_is_tried_elsewhere_only_if_it_may_be(tmp_path: Path) -> None:
    times = {"request_timeout": 1.0, "recovery_window": 0.5, "lost_after": 2.0}
    ran = tmp_path / "ran"

    async def work(space: Any, number: int) -> int:
        await space.run(f"echo {number} >> {ran}; while [ -e {tmp_path}/wait ]; do sleep .1; done")
        return number

    async with hosts(tmp_path) as servers:
        port = int(servers[0].url.rpartition(":")[2])
        async with Swallower(port) as line:
            async with fleet_of(servers, via={servers[0].url: line.url}, **times) as fleet:
                (tmp_path / "wait").touch()
                running = asyncio.ensure_future(
                    fleet.gather(work, range(4), concurrency=4, idempotent=lambda n: n < 2, **PLAIN)
                )

                async def begun() -> bool:
                    return ran.exists() and len(ran.read_text().split()) == 4

                await until(begun)
                line.swallow()

                async def missed() -> bool:
                    return "lost" in {node.state for node in (await fleet.status()).nodes}

                await until(missed)
                (tmp_path / "wait").unlink()
                outcomes: list[Outcome] = await asyncio.wait_for(running, 40)
                states = {o.index: (o.state, o.attempts > 1) for o in outcomes}
                assert Counter(ok for ok, _ in states.values())["lost"] >= 1
                for index, (state, retried) in states.items():
                    assert state in ("ok", "lost")
                    assert not (index >= 2 and retried)
                    assert not (index < 2 and state == "lost")
                times_run = Counter(ran.read_text().split())
                assert all(times_run[str(n)] == 1 for n in (2, 3))


async def test_a_silent_host_is_no_timeout_of_the_task(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1) as servers:
        async with Swallower(int(servers[0].url.rpartition(":")[2])) as line:
            times = {"request_timeout": 1.0, "recovery_window": 60.0}
            async with fleet_of(servers, via={servers[0].url: line.url}, **times) as fleet:

                async def work(space: Any, number: int) -> None:
                    line.swallow()
                    await space.run("sleep 600")

                (one,) = await fleet.gather(work, [0], timeout=6.0, **PLAIN)
                line.flow()
                assert (one.state, one.infra) == ("lost", True)
                assert isinstance(one.error, NodeUnreachable)


async def test_a_quota_is_waited_for_as_room_is(tmp_path: Path) -> None:
    quotas = {"small": {"workspaces": 2, "cpus": 3}}
    async with hosts(tmp_path) as servers:
        async with fleet_of(servers, tenant="small", quotas=quotas) as fleet:

            async def work(space: Any, number: int) -> int:
                return (await space.run("true")).exit_code

            outcomes = await fleet.gather(work, range(12), concurrency=6, **PLAIN)
            assert [one.value for one in outcomes] == [0] * 12
            (never,) = await fleet.gather(work, [0], **{**PLAIN, "cpus": 4})
            assert (never.state, never.infra) == ("failed", True)
            assert isinstance(never.error, QuotaExceeded)


def test_the_blocking_fleet_has_the_same_names(tmp_path: Path) -> None:
    for kind, blocking in ((Fleet, SyncFleet), (FleetWorkspace, SyncFleetWorkspace)):
        names = {name for name in vars(kind) if not name.startswith("_")}
        lacking = names - set(dir(blocking)) - {"line", "amounts", "tenant", "temporary", "pass_on"}
        assert not lacking
    with host(tmp_path) as server:
        with SyncFleet([server.url]) as fleet:
            fleet.wait(1)
            space = fleet.workspace(**PLAIN)
            assert space.run("echo hi").stdout == "hi\n"
            space.files.write("f", "text")
            assert (space.files.read("f"), space.state) == ("text", "ready")
            process = space.start("echo a; exit 4")
            assert process.result().exit_code == 4
            needs = {**PLAIN, "near": space}
            found = fleet.gather(
                lambda one, task: one.run(f"echo {task}").stdout, "abc", concurrency=2, **needs
            )
            assert [o.value for o in found] == ["a\n", "b\n", "c\n"]

            def made_there() -> Iterator[str]:
                for name in "xy":
                    yield space.run(["echo", name]).stdout

            found = fleet.gather(lambda one, task: task, made_there(), **PLAIN)
            assert [o.value for o in found] == ["x\n", "y\n"]
            assert fleet.status().workspaces == 1
            space.release()
            assert (fleet.workspaces(), space.state) == ([], "released")


async def test_commands_share_a_network_within_their_workspace_alone(tmp_path: Path) -> None:
    """Also in workspaces that one line enters one after the other, and with networks made ahead;
    those go when none is asked for."""

    async def work(space: FleetWorkspace, _: int) -> list[str]:
        looks = [await space.run(["readlink", "/proc/self/ns/net"], check=True) for _ in range(2)]
        return [one.stdout.strip() for one in looks]

    with host(tmp_path) as server:
        async with fleet_of([server]) as fleet:
            async with await fleet.workspace(**SMALL) as held:
                kept = await held.run(["readlink", "/proc/self/ns/net"], check=True)
                outcomes = await fleet.gather(work, range(24), concurrency=3, **SMALL)
                assert all(one.ok for one in outcomes), outcomes
                pairs = [one.value for one in outcomes]
                assert all(first == second for first, second in pairs)
                assert all(first != kept.stdout.strip() for first, _ in pairs)
                assert (await held.run(["readlink", "/proc/self/ns/net"])).stdout == kept.stdout
            pid = (await fleet.status()).nodes[0].server_pid
            assert pid is not None
            await eventually_so(lambda: not _networks_of(pid), "the server holds a network")


def _networks_of(pid: int) -> list[str]:
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return [one for one in found if one.startswith("net:")]


async def test_the_next_map_uses_the_lines_of_the_last_one(tmp_path: Path) -> None:
    sessions: set[str | None] = set()

    async def work(space: FleetWorkspace, _: int) -> int | None:
        sessions.add(space.line.session_id)
        return (await space.run(["true"])).exit_code

    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers, park_after=0.4) as fleet:
            (node,) = fleet._parts.nodes.all()
            how = {"concurrency": 4, **PLAIN}

            async def mapped() -> set[str | None]:
                sessions.clear()
                assert all(one.value == 0 for one in await fleet.gather(work, range(20), **how))
                return set(sessions)

            first = await mapped()
            assert await mapped() == first
            assert len(node.kept_lines) == len(first) == 4
            async with await fleet.workspace(**PLAIN) as space:
                assert space.line.session_id in first
                assert len(node.kept_lines) == 3
            assert await fleet.workspaces() == []

            async def none() -> bool:
                return not node.kept_lines and not node.lines

            await until(none)
            second = await mapped()
            assert not second & first
            for line in list(node.lines):
                line.lose(node.unreachable("the test"))
            assert not await mapped() & second
        assert not node.lines
