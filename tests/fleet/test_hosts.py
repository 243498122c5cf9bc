"""A fleet on a list of hosts: placement, workspaces, templates, owners."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
import tarfile
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from handrail.errors import UsageError
from handrail.fleet import (
    Fleet,
    FleetError,
    NoCapacity,
    NodeUnreachable,
    QuotaExceeded,
    TemplateError,
    VersionMismatch,
    WorkspaceGone,
    node_set,
)
from tests.fleet.support import PLAIN, SMALL, Swallower, fleet_of, host, hosts, until
from tests.server.workspaces.support import stored
from tests.support.eventually import LIMIT, eventually_so
from tests.support.servers import server_process


async def test_workspaces_are_spread_and_go_with_their_driver(tmp_path: Path) -> None:
    async with hosts(tmp_path) as servers:
        async with fleet_of(servers) as fleet:
            spaces = [await fleet.workspace(**SMALL) for _ in range(4)]
            assert sorted(Counter(space.node for space in spaces).values()) == [2, 2]
            found = await asyncio.gather(
                *(space.run("pwd; echo e >&2; exit 3") for space in spaces)
            )
            assert [one.stdout.strip() for one in found] == [space.root for space in spaces]
            assert {(one.exit_code, one.stderr) for one in found} == {(3, "e\n")}
            near = await fleet.workspace(near=spaces[0], **SMALL)
            named = await fleet.workspace(node=spaces[1].node, labels={"for": "x"}, **SMALL)
            assert (near.node, named.node) == (spaces[0].node, spaces[1].node)
            assert [one.id for one in await fleet.workspaces(labels={"for": "x"})] == [named.id]
            status = await fleet.status()
            assert (status.state, status.workspaces) == ("up", 6)
            assert {(n.state, n.cpus, n.server_pid) for n in status.nodes} == {
                ("ready", 8.0, server.pid) for server in servers
            }
            again = await fleet.workspace(id=named.id, **SMALL)
            assert again is named
            await named.release()
            assert named.state == "released"
        async with fleet_of(servers) as other:
            assert await other.workspaces() == []


async def test_room_is_waited_for_and_what_is_too_large_is_told_at_once(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1, share="cpus=2,memory=64MiB") as servers:
        async with fleet_of(servers) as fleet:
            for needs, reason in (({"cpus": 3}, "cpus"), ({"memory": "1PiB"}, "memory")):
                with pytest.raises(NoCapacity) as refused:
                    await fleet.workspace(**{**PLAIN, **needs}, timeout=3600)
                assert refused.value.reason == reason
            with pytest.raises(NoCapacity) as nowhere:
                await fleet.workspace(on={"zone": "moon"}, timeout=3600, **PLAIN)
            assert nowhere.value.reason == "nodes"
            one, _ = [await fleet.workspace(**PLAIN) for _ in range(2)]
            with pytest.raises(NoCapacity) as full:
                await fleet.workspace(timeout=0.3, **PLAIN)
            assert (full.value.reason, list(full.value.refusals)) == ("cpus", [one.node])
            waiting = asyncio.ensure_future(fleet.workspace(**PLAIN))
            async with fleet_of(servers) as other:  # the room that another driver makes counts too
                beside = asyncio.ensure_future(other.workspace(**PLAIN))
                await one.release()
                done, _ = await asyncio.wait((waiting, beside), return_when=asyncio.FIRST_COMPLETED)
                assert len(done) == 1
                await done.pop().result().release()
                await asyncio.gather(waiting, beside)


async def test_no_room_is_waited_for_when_all_hosts_are_lost() -> None:
    with socket.socket() as closed:  # bound, and not listening: nothing else answers there
        closed.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{closed.getsockname()[1]}"
        async with Fleet([url], request_timeout=0.1, lost_after=0.1) as fleet:
            with pytest.raises(NoCapacity, match=r"is left: .*silent for 0\.1 s") as refused:
                await fleet.workspace(timeout=float("inf"), **PLAIN)
            assert refused.value.reason == "nodes"


async def test_a_full_disk_takes_no_new_workspace(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1, min_free="1PiB") as servers:
        async with fleet_of(servers) as fleet:
            with pytest.raises(NoCapacity) as refused:
                await fleet.workspace(timeout=0.2, **PLAIN)
            assert refused.value.reason == "disk"


async def test_commands_see_nothing_of_their_neighbours(tmp_path: Path, ws: Path) -> None:
    async with hosts(ws, 1) as servers:
        async with fleet_of(servers) as fleet:
            one, two = [await fleet.workspace(env={"A": "b"}, **SMALL) for _ in range(2)]
            await one.files.write("secret", "s3cret")
            tmp = (
                await one.run("echo t3mp > $TMPDIR/secret; echo $TMPDIR", check=True)
            ).stdout.strip()
            for command in (f"cat {one.root}/secret", f"cat {tmp}/secret", f"touch {one.root}/x"):
                got = await two.run(command)
                assert got.exit_code != 0
                assert "3" not in got.stdout
            got = await two.run("touch here $TMPDIR/here && echo $A && env | grep -c ^HANDRAIL")
            assert got.stdout.split() == ["b", "0"]


async def test_templates_pools_and_files(tmp_path: Path) -> None:
    source = tmp_path / "template"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "hello").write_text("#!/bin/sh\necho hello\n")
    (source / "bin" / "hello").chmod(0o755)
    (source / "link").symlink_to("bin")
    async with hosts(tmp_path) as servers:
        async with fleet_of(servers) as fleet:
            digest = await fleet.put(source)
            assert await fleet.put(source) == digest
            await fleet.pool(source, 3, prepare="echo made > prepared")
            infos = (await fleet.status()).nodes
            assert sorted(one.pools[digest] for one in infos) == [1, 2]
            assert {one.templates for one in infos} == {(digest,)}
            warm = await fleet.workspace(template=source, **PLAIN)
            assert (warm.warm, warm.template) == (True, digest)
            assert (await warm.run("link/hello; cat prepared")).stdout == "hello\nmade\n"
            await fleet.pool(source, 0)
            cold = await fleet.workspace(template=f"sha256:{digest}", **PLAIN)
            assert not cold.warm
            assert sorted((await cold.run("ls")).stdout.split()) == ["bin", "link"]
            (tmp_path / "up").write_text("up")
            await cold.upload(tmp_path / "up", "down")
            await cold.download("down", tmp_path / "back")
            assert (tmp_path / "back").read_text() == "up"
            with pytest.raises(FleetError, match="prepare"):
                await fleet.pool(source, 1, prepare="exit 7")


async def test_a_template_that_only_some_hosts_have_is_waited_for_there(tmp_path: Path) -> None:
    source = tmp_path / "t"
    source.mkdir()
    (source / "f").write_text("f")
    wish = {"cpus": 8, "memory": 0, "sandbox": "off"}
    async with hosts(tmp_path) as servers:
        async with fleet_of(servers[:1]) as fleet:
            digest = await fleet.put(source)
        async with fleet_of(servers) as fleet:  # this driver has not the archive
            first = await fleet.workspace(template=f"sha256:{digest}", **wish)
            with pytest.raises(NoCapacity):
                await fleet.workspace(template=f"sha256:{digest}", timeout=0.5, **wish)
            (other,) = {node.id for node in (await fleet.status()).nodes} - {first.node}
            with pytest.raises(TemplateError):
                await fleet.workspace(template=f"sha256:{digest}", node=other, **wish)
            await first.release()
            again = await fleet.workspace(template=f"sha256:{digest}", **wish)
            assert again.node == first.node


async def test_a_template_that_cannot_be_used_is_told_before_anything_is_placed(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"no archive")
    unsafe = tmp_path / "unsafe.tar"
    with tarfile.open(unsafe, "w") as archive:
        info = tarfile.TarInfo("../out")
        archive.addfile(info)
    cases = {
        str(tmp_path / "nothing"): "missing",
        f"sha256:{'0' * 64}": "missing",
        str(broken): "corrupt",
        str(unsafe): "unsafe",
    }
    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers) as fleet:
            for template, kind in cases.items():
                with pytest.raises(TemplateError) as refused:
                    await fleet.workspace(template=template, **PLAIN)
                assert refused.value.kind == kind
            assert await fleet.workspaces() == []


async def test_quotas_count_over_all_drivers(tmp_path: Path) -> None:
    quotas = {"small": {"workspaces": 2, "cpus": 3}}
    async with hosts(tmp_path) as servers:
        async with fleet_of(servers, tenant="small", quotas=quotas) as fleet:
            async with fleet_of(servers, tenant="small", quotas=quotas) as other:
                one = await fleet.workspace(**PLAIN)
                with pytest.raises(QuotaExceeded) as refused:
                    await other.workspace(**{**PLAIN, "cpus": 2.5})
                assert (refused.value.what, refused.value.limit) == ("cpus", 3)
                await other.workspace(**PLAIN)
                with pytest.raises(QuotaExceeded) as refused:
                    await fleet.workspace(**PLAIN)
                assert (refused.value.tenant, refused.value.what, refused.value.used) == (
                    "small",
                    "workspaces",
                    2,
                )
                await one.release()
                again = await fleet.workspace(**PLAIN)
                await other.adopt(again.id)  # is counted once, for its new owner
                with pytest.raises(QuotaExceeded):
                    await fleet.workspace(**PLAIN)
            async with fleet_of(servers) as free:  # another tenant
                await asyncio.gather(*(free.workspace(**PLAIN) for _ in range(4)))


async def test_a_left_workspace_is_adopted_with_its_output_or_swept(tmp_path: Path) -> None:
    async with hosts(tmp_path) as servers:
        victim = Fleet([server.url for server in servers], owner="victim", name="hosts")
        async with victim:
            spaces = [await victim.workspace(labels={"n": str(n)}, **PLAIN) for n in range(3)]
            for number, space in enumerate(spaces):
                await space.files.write("mark", str(number))
                done = await space.start(f"echo done {number}; exit {number}")
                await done.result()
                await (await space.start("echo begun; sleep 600")).wait_for("begun")
            ids = [space.id for space in spaces]
            assert await victim.detach() == "hosts"
        async with fleet_of(servers) as fleet:
            assert {one.id for one in await fleet.workspaces(owner="victim")} == set(ids)

            async def unheld() -> bool:
                return not any(one.held for one in await fleet.workspaces(owner="victim"))

            await until(unheld)
            space = await fleet.adopt(ids[1])
            assert (space.labels, await space.files.read("mark")) == ({"n": "1"}, "1")
            ended, running = space.processes
            got = await ended.result()
            assert (got.exit_code, got.stdout, got.omitted) == (1, "done 1\n", 0)
            assert running.exit is None
            assert [one.owner for one in await fleet.workspaces() if one.id == space.id] == [
                fleet.owner
            ]
            assert await fleet.sweep() == 2
            assert [one.id for one in await fleet.workspaces()] == [space.id]
            await space.release()
            for gone in ids:
                with pytest.raises(WorkspaceGone):
                    await fleet.adopt(gone)
            await fleet.workspace(**PLAIN)
            assert await fleet.sweep(owner=fleet.owner) == 1


@pytest.mark.fault
async def test_what_another_driver_has_swept_is_gone_for_its_own(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers, owner="one") as fleet, fleet_of(servers) as other:
            space = await fleet.workspace(**PLAIN)
            assert await other.sweep(owner="one") == 1
            for _ in range(2):
                with pytest.raises(WorkspaceGone):
                    await space.run("true")
            with pytest.raises(WorkspaceGone):
                await space.files.read("x")
            assert space.state == "expired"


@pytest.mark.fault
async def test_what_no_workspace_can_have_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers) as fleet:
            wrong: list[dict[str, object]] = [
                {"sandbox": "none"},
                {"env": {"A=": "x"}},
                {"id": "a/b"},
                {"id": ""},
                {"near": "x"},
            ]
            for one in wrong:
                with pytest.raises(UsageError):
                    await fleet.workspace(**{**PLAIN, **one})
            assert await fleet.workspaces() == []
            monkeypatch.setattr("handrail.fleet.placing.FleetWorkspace", None)
            with pytest.raises(TypeError):
                await fleet.workspace(**PLAIN)

            async def none() -> bool:
                return not await fleet.workspaces()

            await until(none)  # nor is what was made and cannot be used left
            (node,) = fleet._parts.nodes.ready()
            assert (node.lines, node.free) == (set(), node.total)


async def test_a_lease_runs_only_without_its_driver(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers, lease=1.0) as fleet, fleet_of(servers, lease=1.0) as left:
            space = await fleet.workspace(**PLAIN)
            process = await space.start("sleep 600 & echo $!; wait")
            await process.wait_for("\n")
            await left.workspace(**PLAIN)
            await left.detach()
            async with fleet_of(servers) as other:

                async def ended(of: Fleet) -> bool:
                    return not await other.workspaces(owner=of.owner)

                await until(partial(ended, left))  # the same lease, of a younger one without driver
                assert not await ended(fleet)
                await fleet.detach()
                await until(partial(ended, fleet))


async def test_an_id_names_one_workspace_also_at_once_and_for_the_next_driver(
    tmp_path: Path,
) -> None:
    async with hosts(tmp_path) as servers:
        async with fleet_of(servers, owner="me") as fleet:
            spaces = await asyncio.gather(*(fleet.workspace(id="x", **PLAIN) for _ in range(4)))
            assert len(set(map(id, spaces))) == 1
            await spaces[0].files.write("mark", "m")
            await fleet.detach()
        async with fleet_of(servers, owner="me") as again:
            space = await again.workspace(id="x", **PLAIN)
            assert await space.files.read("mark") == "m"
            assert [one.id for one in await again.workspaces()] == ["x"]
            async with fleet_of(servers, owner="another") as other:
                with pytest.raises(FleetError, match="another owner"):
                    await other.workspace(id="x", node=space.node, **PLAIN)


async def test_a_workspace_whose_lease_ran_out_behind_our_back_is_expired(tmp_path: Path) -> None:
    times = {"request_timeout": 1.0, "recovery_window": 0.5, "lease": 0.5}
    async with hosts(tmp_path, 1) as servers:
        async with Swallower(int(servers[0].url.rpartition(":")[2])) as line:
            async with fleet_of(servers, via={servers[0].url: line.url}, **times) as fleet:
                space = await fleet.workspace(**PLAIN)
                await space.run("echo kept > f")
                await space.reconnect()
                assert (await space.run("cat f")).stdout == "kept\n"
                async with fleet_of(servers) as other:
                    line.refuse()

                    async def gone() -> bool:
                        return not await other.workspaces()

                    await until(gone)
                line.flow()

                async def told() -> bool:
                    with pytest.raises((WorkspaceGone, NodeUnreachable)) as refused:
                        await space.run("true")
                    return isinstance(refused.value, WorkspaceGone)

                await until(told)
                assert space.state == "expired"
                await space.release()
                assert await fleet.workspaces() == []


async def test_a_killed_driver_leaves_no_archive_behind(tmp_path: Path) -> None:
    template, temporary = tmp_path / "template", tmp_path / "tmp"
    temporary.mkdir()
    template.mkdir()
    content = os.urandom(5 << 20)
    (template / "large").write_bytes(content)
    code = """
import asyncio, sys
from handrail.fleet import Fleet
async def main():
    async with Fleet([sys.argv[1]]) as fleet:
        space = await fleet.workspace(cpus=1, memory=0, sandbox="off", template=sys.argv[2])
        print((await space.run("sha256sum < large")).stdout, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    with host(tmp_path) as server:
        driver = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, server.url, str(template)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert driver.stdout is not None
        said = await driver.stdout.readline()
        driver.kill()
        await driver.wait()
        assert said.decode().split()[0] == hashlib.sha256(content).hexdigest()
        assert os.listdir(temporary) == []


async def test_an_idle_workspace_gives_its_line_up(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers, park_after=0.2) as fleet:
            space = await fleet.workspace(**PLAIN)
            process = await space.start("cat")
            idle = await fleet.workspace(**PLAIN)
            await eventually_so(lambda: idle.line.parked, "parked")
            assert not space.line.parked  # a process is followed
            await process.terminate()
            await eventually_so(lambda: space.line.parked, "parked")
            name = "handrail_connections_active"
            lines = [v for k, v in servers[0].metrics().items() if k.startswith(name)]
            assert not lines or lines == [1.0]  # the control line
            assert (await space.run("echo back")).stdout == "back\n"
            assert space.state == "ready"


async def test_a_host_that_is_not_there_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_set, "PATIENCE", 0.1)
    with host(tmp_path) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        absent = f"ws://127.0.0.1:{closed.getsockname()[1]}"
        async with asyncio.timeout(LIMIT):
            fleet = Fleet([server.url, absent], request_timeout=10 * LIMIT)
            async with fleet:
                await fleet.workspace(**PLAIN)
                states = {node.url: node.state for node in (await fleet.status()).nodes}
                assert states == {server.url: "ready", absent: "joining"}


async def test_servers_that_do_not_fit_are_refused_at_once(tmp_path: Path) -> None:
    with server_process(tmp_path / "s") as server:
        with pytest.raises(VersionMismatch) as refused:
            async with Fleet([server.url]):
                pass
        assert "workspaces" in refused.value.theirs
    for wrong in (["tcp://x"], [], ["ws://a:1", "ws://a:1"]):
        with pytest.raises(UsageError):
            async with Fleet(wrong):
                pass


async def test_what_commands_listen_on_can_be_exposed(tmp_path: Path) -> None:
    """As of every workspace: its commands share a loopback."""
    serve = (
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 8123)) as listener:\n"
        "    print('ready', flush=True)\n"
        "    listener.accept()[0].sendall(b'from inside')\n"
    )
    with host(tmp_path) as server:
        async with fleet_of([server]) as fleet:
            space = await fleet.workspace(**SMALL)
            process = await space.start([sys.executable, "-c", serve])
            await process.wait_for("ready", timeout=30)
            exposure = await space.expose(8123)
            reader, writer = await asyncio.open_connection("127.0.0.1", exposure.port)
            async with asyncio.timeout(30):
                assert await reader.read() == b"from inside"
            writer.close()
            await exposure.close()


async def test_metrics_tell_of_every_node(tmp_path: Path) -> None:
    async with hosts(tmp_path) as servers:
        async with fleet_of(servers) as fleet:
            await fleet.workspace(**PLAIN)

            async def work(space: object, task: int) -> int:
                return 1 // task

            await fleet.gather(work, [1, 0], **PLAIN)
            text = await fleet.metrics()
            for node in (await fleet.status()).nodes:
                assert f'node="{node.id}"' in text
            for line in (
                'handrail_fleet_nodes{state="ready"} 2',
                "handrail_fleet_workspaces 1",
                'handrail_fleet_tasks_total{state="failed"} 1',
                "handrail_fleet_create_seconds_count 3",  # those of tasks too
            ):
                assert line in text.splitlines()


async def test_the_end_of_a_fleet_of_hosts_leaves_the_servers(tmp_path: Path) -> None:
    source = tmp_path / "t"
    source.mkdir()
    with host(tmp_path / "h") as server:
        left = Fleet([server.url], owner="left")
        async with left:
            await left.workspace(**PLAIN)
            await left.detach()
        async with fleet_of([server]) as fleet:
            await fleet.pool(source, 1)
            await fleet.down()
        async with fleet_of([server]) as fleet:
            (node,) = (await fleet.status()).nodes
            assert (node.workspaces, node.pools) == (0, {})
        assert stored(tmp_path / "h" / "w") == set()
