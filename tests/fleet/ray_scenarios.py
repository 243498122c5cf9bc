"""What a fleet does on a Ray cluster; each scenario gets the world of ``ray_world``."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import ray
from ray.util.placement_group import placement_group_table

from handrail.fleet import (
    Fleet,
    FleetError,
    FleetUnknown,
    NoCapacity,
    NodeInfo,
    NodeLost,
    NodeUnreachable,
    TemplateError,
    VersionMismatch,
    WorkspaceGone,
)
from handrail.fleet.actor_names import namespace
from handrail.fleet.metrics import fetch
from handrail.fleet.ray_engine import RayEngine
from handrail.version import __version__
from tests.fleet.ray_world import World, alive, kill, node_of, until
from tests.fleet.support import Swallower
from tests.fleet.tasks.killed_runs import HANDRAIL, KilledRuns

SMALL: dict[str, Any] = {"cpus": 1, "memory": "1MiB"}
PLAIN: dict[str, Any] = {**SMALL, "sandbox": "off"}


def groups(name: str) -> list[str]:
    found = placement_group_table().values()
    prefix = f"handrail-fleet-{name}/"
    return [g["name"] for g in found if g["name"].startswith(prefix) and g["state"] != "REMOVED"]


def _check_secrets(world: World, fleet: Fleet, nodes: list[NodeInfo], log: str) -> None:
    """A token opens its own node alone, and no key is to be seen."""
    parts = fleet._parts
    assert isinstance(parts.engine, RayEngine)
    one, other = nodes[:2]
    token = fleet.token(one.id)
    for node in (one, other):
        context = parts.engine._contexts[parts.nodes.find(node.id).member.certificate]
        if node is one:
            assert "handrail_workspaces" in fetch(node.url, token, context)
        else:
            with pytest.raises(OSError, match="401"):
                fetch(node.url, token, context)
    (key,) = world.scratch.rglob(f"{one.id}/key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    shown = [Path(f"/proc/{one.server_pid}/{name}").read_text() for name in ("cmdline", "environ")]
    assert not [text for text in (*shown, log, repr(nodes)) if key.read_text() in text]


async def spread_and_labels(world: World) -> None:
    async with await world.join() as fleet:
        spaces = [await fleet.workspace(**SMALL) for _ in range(2 * world.count)]
        assert Counter(Counter(s.node for s in spaces).values()) == {2: world.count}
        found = await asyncio.gather(*(s.run("pwd; env | grep -c ^RAY_") for s in spaces))
        assert [one.stdout.split() for one in found] == [[s.root, "0"] for s in spaces]
        status = await fleet.status()
        assert (status.state, status.name) == ("up", world.name)
        assert all(n.supervisor_pid and n.engine_id and n.version for n in status.nodes)
        zone = next(n for n in status.nodes if n.labels["zone"] == "z1")
        assert (await fleet.workspace(on={"zone": "z1"}, **SMALL)).node == zone.id
        assert zone.url.startswith("wss://")  # Ray's address is not loopback
        assert "wss://" in await fleet.logs(zone.id)
        await asyncio.to_thread(
            _check_secrets, world, fleet, status.nodes, await fleet.logs(zone.id)
        )
        with pytest.raises(NoCapacity):
            await fleet.workspace(cpus=1000, memory=0)
    async with await world.join() as again:
        assert await again.workspaces() == []


async def templates_by_the_object_store(world: World) -> None:
    source = world.scratch / "template"
    source.mkdir()
    (source / "data").write_bytes(os.urandom(100_000))
    async with await world.join() as fleet:
        digest = await fleet.put(source)
        infos = (await fleet.status()).nodes
        assert all(digest in node.templates for node in infos if node.state == "ready")
        space = await fleet.workspace(template=f"sha256:{digest}", **PLAIN)
        assert (await space.run("wc -c < data")).stdout.strip() == "100000"
        with pytest.raises(TemplateError):
            await fleet.put(f"sha256:{'1' * 64}")


async def a_lost_machine(world: World) -> None:
    async with await world.join() as fleet:
        engine_id = await world.add_node(zone="doomed")
        await fleet.wait(world.count + 1, timeout=90)
        there = [await fleet.workspace(on={"zone": "doomed"}, **PLAIN) for _ in range(2)]
        process = await there[0].start("echo begun; sleep 300")
        await process.wait_for("begun", timeout=20)
        info = await node_of(fleet, there[0].node)
        assert info.engine_id == engine_id
        ran = world.scratch / "ran"

        async def work(space: Any, task: int) -> str:
            return (await space.run(f"echo {task} >> {ran}; sleep .5; echo {task}")).stdout

        async def tasks(idempotent: bool) -> list[Any]:
            return await fleet.gather(
                work, range(40), concurrency=12, idempotent=idempotent, retries=3, **PLAIN
            )

        waiting = asyncio.ensure_future(process.result())
        running = asyncio.ensure_future(tasks(False))
        await until(lambda: ran.exists() and len(ran.read_text().split()) > 12)
        await world.lose(info)
        with pytest.raises(NodeLost) as lost:
            await asyncio.wait_for(waiting, 40)
        assert lost.value.node == info.id
        assert process.exit is None
        for space in there:
            assert space.state == "lost"
            with pytest.raises(NodeLost):
                await space.run("true")
            await asyncio.wait_for(space.release(), 10)
        outcomes = await running
        missing = [o for o in outcomes if o.state == "lost"]
        assert all(isinstance(o.error, NodeLost) and o.infra and o.value is None for o in missing)
        assert all(o.ok and o.value == f"{o.index}\n" for o in outcomes if o not in missing)
        assert max(Counter(ran.read_text().split()).values()) == 1
        assert (await node_of(fleet, info.id)).state == "lost"
        with pytest.raises(NodeLost):
            await fleet.workspace(node=info.id, **PLAIN)
        assert all(o.ok for o in await tasks(True))
        assert not [name for name in groups(world.name) if name.endswith(info.id)]


async def a_killed_driver(world: World) -> None:
    code = """
        import asyncio, sys
        from handrail.fleet import Fleet
        async def main():
            fleet = await Fleet.attach(sys.argv[2], sys.argv[1], owner="victim", lease=4)
            w = await fleet.workspace(cpus=1, memory="1MiB", sandbox="off", lease=60)
            await w.start("for i in 1 2 3 4 5; do echo $i; sleep .3; done; exit 11")
            short = await fleet.workspace(cpus=1, memory="1MiB", sandbox="off")
            await short.start("sleep 600")
            print(w.id, short.id, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
    """
    argv = [sys.executable, "-c", textwrap.dedent(code), world.where, world.name]
    driver = await asyncio.to_thread(subprocess.Popen, argv, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    long, short = (await asyncio.to_thread(driver.stdout.readline)).split()
    driver.kill()
    await asyncio.to_thread(driver.wait)
    driver.stdout.close()
    async with await world.join() as fleet:

        async def ended() -> bool:
            return [one.id for one in await fleet.workspaces(owner="victim")] == [long]

        await until(ended)
        space = await fleet.adopt(long)
        (process,) = space.processes
        got = await process.result()
        assert (got.exit_code, got.stdout.split(), got.omitted) == (11, list("12345"), 0)
        with pytest.raises(WorkspaceGone):
            await fleet.adopt(short)


async def a_killed_server_and_supervisor(world: World) -> None:
    async with await world.join() as fleet:
        space = await fleet.workspace(**PLAIN)
        info = await node_of(fleet, space.node)
        process = await space.start("for i in 1 2 3 4 5; do echo $i; sleep .4; done; exit 21")
        await process.wait_for("1", timeout=20)
        kill(info.server_pid)
        got = await asyncio.wait_for(process.result(), 60)
        assert (got.exit_code, got.stdout.split(), got.omitted) == (21, list("12345"), 0)
        now = await node_of(fleet, space.node)
        assert (now.state, now.url) == ("ready", info.url)
        assert now.server_pid != info.server_pid
        kill(now.supervisor_pid)
        assert (await space.run("echo on")).stdout == "on\n"

        async def another() -> bool:
            found = await node_of(fleet, space.node)
            return found.supervisor_pid not in (None, now.supervisor_pid)

        await until(another)
        found = await node_of(fleet, space.node)
        assert (found.server_pid, found.state) == (now.server_pid, "ready")
        kill(found.server_pid)  # and the new supervisor does its work
        assert (await asyncio.wait_for(space.run("echo again"), 60)).stdout == "again\n"


async def a_killed_server_with_its_keeper(world: World) -> None:
    async with await world.join() as fleet:
        space = await fleet.workspace(**PLAIN)
        info = await node_of(fleet, space.node)
        process = await space.start("echo begun; exec sleep 300")
        await process.wait_for("begun", timeout=20)
        kill(info.server_pid)  # first: a server that loses its keeper starts another
        kill(info.keeper_pid)
        with pytest.raises(NodeLost):
            await asyncio.wait_for(process.result(), 60)
        assert space.state == "lost"
        again = await fleet.workspace(node=space.node, **PLAIN)
        assert (await again.run("echo new")).stdout == "new\n"


async def a_killed_registrar(world: World) -> None:
    async with await world.join() as fleet:
        space = await fleet.workspace(**PLAIN)
        process = await space.start("sleep 1; echo through; exit 5")
        infos = (await fleet.status()).nodes
        before = {node.id: node.server_pid for node in infos if node.state == "ready"}
        registrar = ray.get_actor("registrar", namespace=namespace(world.name))
        ray.kill(registrar, no_restart=False)
        got = await process.result()
        assert (got.exit_code, got.stdout) == (5, "through\n")
        async with await world.join() as other:
            await other.wait(world.count, timeout=60)
            assert {n.id: n.server_pid for n in (await other.status()).nodes} == before
            await other.workspace(**PLAIN)
        assert (await space.run("echo on")).stdout == "on\n"
        assert [n.state for n in (await fleet.status()).nodes if n.id in before] == ["ready"] * 2
        info = await node_of(fleet, space.node)
        process = await space.start("sleep 3; echo all through; exit 6")
        ray.kill(registrar, no_restart=False)
        kill(info.supervisor_pid)  # the next registrar asks one that is being restarted
        kill(info.server_pid)
        got = await process.result()
        assert (got.exit_code, got.stdout) == (6, "all through\n")
        assert (await space.run("echo on")).stdout == "on\n"

        async def restored() -> bool:
            now = await node_of(fleet, space.node)
            return now.state == "ready" and now.supervisor_pid not in (None, info.supervisor_pid)

        await until(restored)
        assert (await node_of(fleet, space.node)).url == info.url


async def ray_gone_and_the_machine_alive(world: World) -> None:
    options = world.own(labels={"zone": "orphan"}, orphan_after=8.0)
    engine_id = await world.add_node(standing=False, zone="orphan")
    async with Fleet(world.where, **options) as fleet:
        await fleet.wait(1, timeout=90)
        space = await fleet.workspace(**PLAIN)
        info = await node_of(fleet, space.node)
        await space.start("sleep 600")
        await world.drop_node(engine_id)
        with pytest.raises(NodeLost):
            for _ in range(600):
                await space.run("true")
                await asyncio.sleep(0.1)
        await until(lambda: not alive(info.server_pid) and not alive(info.keeper_pid))


async def _nodes(fleet: Fleet) -> list[Any]:
    return list((await fleet.status()).nodes)


async def elastic_shares(world: World) -> None:
    """Asked for while none fits, kept by a new registrar, asked for elsewhere, and given back."""
    share = {"cpus": 4, "memory": "32MiB"}
    fleet = Fleet(world.where, **world.own(share=share, shares=(1, 2), labels={"size": "new"}))
    fleet._settings = replace(fleet._settings, empty_after=6.0)
    plain: dict[str, Any] = {"cpus": 2, "memory": 0, "sandbox": "off"}
    async with fleet:
        status = await fleet.status()
        assert {node.state for node in status.nodes} <= {"pending"}
        await until(lambda: len(groups(fleet.name)) == 1)  # pending: what an autoscaler sees
        asked = groups(fleet.name)
        with pytest.raises(NoCapacity) as refused:  # at once: no share is larger
            await fleet.workspace(cpus=5, memory=0)
        assert refused.value.reason == "cpus"
        nodes = await until(lambda: _nodes(fleet))  # the driver hears of the group later
        with pytest.raises(FleetError, match="pending"):
            await fleet.logs(nodes[0].id)
        registrar = ray.get_actor("registrar", namespace=namespace(fleet.name))
        engine = fleet._parts.engine
        assert isinstance(engine, RayEngine)
        before = engine._epoch
        ray.kill(registrar, no_restart=False)
        await until(lambda: engine._epoch != before)  # the next one has looked around
        await world.add_node(standing=False, size="new")
        await fleet.wait(1, timeout=90)
        assert groups(fleet.name) == asked
        spaces = [await fleet.workspace(**plain) for _ in range(2)]
        more = await fleet.workspace(timeout=90, **plain)
        assert more.node not in {space.node for space in spaces}
        with pytest.raises(NoCapacity) as refused:
            await fleet.workspace(cpus=5, memory=0)
        assert refused.value.reason == "cpus"
        with pytest.raises(NoCapacity):  # two shares are the most
            for _ in range(2):
                await fleet.workspace(timeout=1, **plain)
        for space in spaces:
            await space.release()
        await until(lambda: len(groups(fleet.name)) == 1)  # the empty one is given back
        assert (await more.run("echo stays")).stdout == "stays\n"
        info = await node_of(fleet, more.node)
        await world.lose(info)
        with pytest.raises(NodeLost):
            while True:
                await more.run("true")
        await until(lambda: groups(fleet.name) and not groups(fleet.name)[0].endswith(info.id))
        await world.add_node(standing=False, size="new")
        again = await fleet.workspace(timeout=90, **plain)
        assert (await again.run("echo elsewhere")).stdout == "elsewhere\n"


async def a_swallowed_line(world: World) -> None:
    """Ray says that the machine is alive; what ran there has gone on."""
    async with AsyncExitStack() as stack:
        lines: dict[str, Swallower] = {}
        async with await world.join() as looking:
            for node in (await looking.status()).nodes:
                if node.state == "ready":
                    address = urlsplit(node.url)
                    assert address.hostname
                    assert address.port
                    line = Swallower(address.port, address.hostname)
                    lines[node.url] = await stack.enter_async_context(line)

        def via(url: str) -> str:
            return lines[url].url.replace("ws:", "wss:") if url in lines else url

        fleet = await world.join(via=via, request_timeout=2.0, recovery_window=2.0)
        await stack.enter_async_context(fleet)
        await fleet.wait(len(lines))
        space = await fleet.workspace(**PLAIN)
        info = await node_of(fleet, space.node)
        process = await space.start("echo begun; read x; echo after; exit 9", stdin=True)
        await process.wait_for("begun", timeout=20)
        lines[info.url].swallow()
        with pytest.raises(NodeUnreachable) as missed:
            await asyncio.wait_for(process.result(), 60)
        assert (missed.value.node, process.exit, space.state) == (info.id, None, "unreachable")
        other = await fleet.workspace(**PLAIN)
        assert other.node != info.id
        lines[info.url].flow()

        async def answers() -> bool:
            try:
                return (await space.run("echo on")).stdout == "on\n"
            except NodeUnreachable:
                return False

        await until(answers)
        (found,) = space.processes
        await found.send("x\n")
        got = await found.result()
        assert (got.exit_code, got.stdout, got.omitted) == (9, "begun\nafter\n", 0)
        assert (await node_of(fleet, info.id)).server_pid == info.server_pid


async def a_machine_with_another_version(world: World) -> None:
    odd = Path(tempfile.mkdtemp(dir=world.scratch))
    (odd / "sitecustomize.py").write_text(
        "import handrail.version\nhandrail.version.__version__ = '999.1.0'\n"
    )
    await world.add_node(standing=False, env={"PYTHONPATH": str(odd)}, zone="odd", mixed="yes")
    async with Fleet(world.where, **world.own(labels={"mixed": "yes"})) as fleet:
        with pytest.raises(VersionMismatch) as refused:
            await fleet.workspace(timeout=90, **PLAIN)
        assert (refused.value.ours, refused.value.theirs) == (__version__, "handrail 999.1.0")
        (info,) = (await fleet.status()).nodes
        assert (info.state, info.version, refused.value.node) == ("mismatch", "999.1.0", info.id)
        await world.add_node(standing=False, zone="even", mixed="yes")
        await fleet.wait(1, timeout=90)
        space = await fleet.workspace(timeout=90, **PLAIN)  # the other nodes go on
        assert space.node != info.id
        assert (await fleet.status()).state == "degraded"
        with pytest.raises(VersionMismatch):
            await fleet.workspace(node=info.id, **PLAIN)
        with pytest.raises(NoCapacity) as none:
            await fleet.workspace(on={"zone": "odd"}, timeout=0.5, **PLAIN)
        assert (none.value.reason, none.value.refusals) == ("version", {info.id: "version"})


async def a_fleet_without_a_name_and_driver(world: World) -> None:
    options = world.own(share={"cpus": 2, "memory": "16MiB"})
    code = f"""
        import asyncio, sys
        from handrail.fleet import Fleet
        async def main():
            async with Fleet(sys.argv[1], lease=2, **{options!r}) as fleet:
                await fleet.wait({world.count}, timeout=90)
                print(fleet.name, *[n.server_pid for n in (await fleet.status()).nodes], flush=True)
                await asyncio.sleep(600)
        asyncio.run(main())
    """
    argv = [sys.executable, "-c", textwrap.dedent(code), world.where]
    driver = await asyncio.to_thread(subprocess.Popen, argv, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    name, *pids = (await asyncio.to_thread(driver.stdout.readline)).split()
    assert len(pids) == world.count
    driver.kill()
    await asyncio.to_thread(driver.wait)
    driver.stdout.close()
    await until(lambda: not any(alive(int(pid)) for pid in pids))
    await until(lambda: not groups(name) and not _actors(name))


async def nothing_is_left_of_a_fleet(world: World) -> None:
    with pytest.raises(FleetUnknown):
        await Fleet.attach("never", world.where)
    options = world.own(share={"cpus": 2, "memory": "16MiB"})
    async with Fleet(world.where, **options) as fleet:
        name = fleet.name
        await fleet.wait(world.count, timeout=90)
        space = await fleet.workspace(**SMALL)
        process = await space.start("sleep 600 & echo $!; wait")
        await process.wait_for("\n", timeout=20)
        pids = [p for n in (await fleet.status()).nodes for p in (n.server_pid, n.keeper_pid)]
        assert len(groups(name)) == world.count == 2
        assert all(alive(pid) for pid in pids)
    await until(lambda: not any(alive(pid) for pid in pids))
    await until(lambda: not groups(name))
    assert os.listdir(Path(options["state_dir"])) == []
    with pytest.raises(FleetUnknown):
        await Fleet.attach(name, world.where)
    await until(lambda: not _actors(name))


async def a_fleet_from_the_shell(world: World) -> None:
    """``up``, a run that is killed and resumed, ``logs``, ``down``; the head is called by name."""
    state = tempfile.mkdtemp(dir=world.scratch)
    where = ["--on", f"ray:localhost:{world.where.rpartition(':')[2]}", "--name", "shell"]
    share = ["--share", "cpus=4,memory=16MiB", "--label", "base=yes", "--min-free", "0"]
    share += ["--shares", str(world.count), "--quota", "default:workspaces=4"]

    async def said(command: str, *words: str, code: int = 0) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            [*HANDRAIL, "fleet", command, *where, *words, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout

    nodes = ["--nodes", str(world.count), "--timeout", "90", "--state-dir", state]
    status = json.loads(await said("up", *share, *nodes))
    assert [node["state"] for node in status["nodes"]] == ["ready"] * world.count
    runs = KilledRuns(Path(state), where, tasks=12, seconds=0.5)
    await asyncio.to_thread(runs.kill_after, 6, 0.1)
    code, summary = await asyncio.to_thread(runs.finish)
    assert (code, summary["ok"]) == (0, 12), summary
    assert summary["adopted"] >= 1, summary
    assert set(runs.times().values()) == {1}
    assert json.loads((await said("logs")).splitlines()[0])["node"]
    await said("down")
    pids = [node[name] for node in status["nodes"] for name in ("serverPid", "keeperPid")]
    await until(lambda: not any(alive(pid) for pid in pids))
    assert json.loads(await said("status", code=125))["error"]["kind"] == "fleetUnknown"
    await until(lambda: not groups("shell") and not _actors("shell"))


def _actors(name: str) -> list[Any]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [one for one in named if one["namespace"] == namespace(name)]
