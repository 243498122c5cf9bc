"""What goes on and what is seen when a server, a keeper, a line or a host dies."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from handrail.errors import ExecutorTransportFailed
from handrail.fleet import NoCapacity, NodeLost, NodeUnreachable
from handrail.fleet.data_line import DataLine
from handrail.process.exit_status import ExitKind
from handrail.server.recovery import state_dir
from tests.fleet.support import PLAIN, Swallower, fleet_of, host, hosts, kill_hard, until
from tests.support.eventually import LIMIT
from tests.support.processes import until_ended
from tests.support.servers import ServerProcess


def port_of(server: ServerProcess) -> int:
    return int(server.url.rpartition(":")[2])


async def test_a_server_that_is_restarted_at_its_address_is_not_missed(tmp_path: Path) -> None:
    with host(tmp_path) as first:
        async with fleet_of([first]) as fleet:
            space = await fleet.workspace(**PLAIN)
            process = await space.start("for i in 1 2 3 4 5; do echo $i; sleep .3; done; exit 21")
            await process.wait_for("2")
            kill_hard(first.pid)
            first.wait()
            with host(tmp_path, listen=f"ws://127.0.0.1:{port_of(first)}") as second:
                got = await process.result()
                assert (got.exit_code, got.stdout.split()) == (21, list("12345"))
                assert got.omitted == 0
                assert (await space.run("echo on")).stdout == "on\n"
                (node,) = (await fleet.status()).nodes
                assert (node.state, node.server_pid) == ("ready", second.pid)
                assert (await fleet.workspace(**PLAIN)).node == space.node


async def test_a_keeper_that_dies_takes_no_workspace_along(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1) as servers:
        async with fleet_of(servers) as fleet:
            space = await fleet.workspace(**PLAIN)
            await space.files.write("kept", "k")
            process = await space.start("echo b; sleep 1; echo after; exit 4")
            await process.wait_for("b")
            (node,) = (await fleet.status()).nodes
            kill_hard(node.keeper_pid)
            got = await process.result()
            assert got.exit is not None
            assert (got.exit.kind, got.exit.code) in ((ExitKind.EXITED, 4), (ExitKind.LOST, None))
            assert got.stdout == "b\nafter\n"
            assert (await space.run("cat kept")).stdout == "k"
            assert space.state == "ready"


async def test_server_and_keeper_gone_is_a_loss_and_the_host_is_usable_again(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as first:
        async with fleet_of([first]) as fleet:
            space = await fleet.workspace(**PLAIN)
            process = await space.start("echo begun; exec sleep 600")
            await process.wait_for("begun")
            (node,) = (await fleet.status()).nodes
            waiting = asyncio.ensure_future(process.result())
            kill_hard(first.pid, node.keeper_pid)  # else the server may start another keeper
            first.wait()
            with host(tmp_path, listen=f"ws://127.0.0.1:{port_of(first)}"):
                with pytest.raises(NodeLost) as lost:
                    await asyncio.wait_for(waiting, 40)
                assert lost.value.node == node.id
                assert process.exit is None
                with pytest.raises(NodeLost):
                    await space.run("true")
                assert space.state == "lost"
                again = await fleet.workspace(**PLAIN)
                assert (await again.run("ls")).stdout == ""
                assert len(await fleet.workspaces()) == 1


def start_empty_keeper(state: Path) -> None:
    """Start a keeper and give it nothing, as a server that loses its keeper and is killed then."""
    directory = state_dir.take(str(state))
    assert directory is not None
    directory._started = True  # such a server does not end what its keeper has left
    try:
        directory.keeper(60.0).sock.close()
    finally:
        directory.close()


@pytest.mark.fault
async def test_a_next_keeper_that_was_given_nothing_is_a_loss_too(tmp_path: Path) -> None:
    with host(tmp_path) as first:
        async with fleet_of([first]) as fleet:
            space = await fleet.workspace(**PLAIN)
            process = await space.start("echo $$; exec sleep 600")
            pid = int((await process.wait_for(r"\d+\n")).match)
            (node,) = (await fleet.status()).nodes
            waiting = asyncio.ensure_future(process.result())
            kill_hard(first.pid, node.keeper_pid)
            first.wait()
            start_empty_keeper(tmp_path / "s")
            with host(tmp_path, listen=f"ws://127.0.0.1:{port_of(first)}"):
                with pytest.raises(NodeLost):
                    await asyncio.wait_for(waiting, 40)
                assert (process.exit, space.state) == (None, "lost")
                await until_ended(pid)
                again = await fleet.workspace(**PLAIN)
                assert (await again.run("ls")).stdout == ""
                assert len(await fleet.workspaces()) == 1


async def test_a_swallowed_line_is_unreachable_and_comes_back_with_everything(
    tmp_path: Path,
) -> None:
    times = {"request_timeout": 2.0, "recovery_window": 2.0}
    async with hosts(tmp_path, 1) as servers, Swallower(port_of(servers[0])) as line:
        via = {servers[0].url: line.url}
        async with fleet_of(servers, via=via, **times) as fleet:
            space = await fleet.workspace(**PLAIN)
            process = await space.start("echo begun; read x; echo after; exit 9", stdin=True)
            await process.wait_for("begun")
            waiting = asyncio.ensure_future(process.result())
            await asyncio.sleep(0)
            line.swallow()
            began = time.monotonic()
            with pytest.raises(NodeUnreachable) as missed:
                await asyncio.wait_for(waiting, 30)
            assert isinstance(missed.value, ExecutorTransportFailed)
            assert missed.value.node == space.node
            assert time.monotonic() - began < 25  # 4 s on an idle machine
            assert (process.exit, space.state) == (None, "unreachable")
            with pytest.raises(NodeUnreachable):
                await space.run("true")
            line.flow()

            async def answers() -> bool:
                try:
                    return (await space.run("echo on")).stdout == "on\n"
                except NodeUnreachable:
                    return False

            await until(answers)
            assert space.state == "ready"
            (found,) = space.processes
            await found.send("x\n")
            got = await found.result()
            assert (got.exit_code, got.stdout, got.omitted) == (9, "begun\nafter\n", 0)
            assert (await fleet.status()).state == "up"


async def test_a_call_without_an_answer_makes_a_workspace_unreachable_until_the_next(
    tmp_path: Path,
) -> None:
    """Before the connection counts as lost."""
    times = {"request_timeout": 0.5, "recovery_window": 10 * LIMIT}
    async with hosts(tmp_path, 1) as servers, Swallower(port_of(servers[0])) as line:
        async with fleet_of(servers, via={servers[0].url: line.url}, **times) as fleet:
            space = await fleet.workspace(**PLAIN)
            line.swallow()
            with pytest.raises(NodeUnreachable):
                await space.files.exists("x")
            assert space.state == "unreachable"
            line.deliver()

            async def answers() -> bool:
                try:
                    return not await space.files.exists("x")
                except NodeUnreachable:
                    return False

            await until(answers)
            assert space.state == "ready"


async def test_a_workspace_that_is_being_made_is_lost_with_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the recovery window: the engine has said that the machine is gone."""
    slow = {"request_timeout": 10 * LIMIT, "recovery_window": 10 * LIMIT}
    with host(tmp_path) as server:
        async with Swallower(port_of(server)) as line:
            via = {server.url: line.url}
            async with fleet_of([server], via=via, **slow) as fleet:
                begin = DataLine.begin

                async def begun(self: DataLine) -> None:
                    await begin(self)
                    line.swallow()

                monkeypatch.setattr(DataLine, "begin", begun)
                making = asyncio.ensure_future(fleet.workspace(**PLAIN))
                await asyncio.wait_for(line.holds.wait(), LIMIT)
                nodes = fleet._parts.nodes
                (node,) = nodes.all()
                nodes.told([replace(node.member, state="lost", error="it is dead")])
                with pytest.raises(NoCapacity, match="it is dead"):
                    await asyncio.wait_for(making, LIMIT)
                assert not node.lines


async def test_a_host_that_is_silent_for_long_is_lost(tmp_path: Path) -> None:
    times = {"request_timeout": 1.0, "recovery_window": 1.0, "lost_after": 3.0}
    async with hosts(tmp_path) as servers, Swallower(port_of(servers[0])) as line:
        async with fleet_of(servers, via={servers[0].url: line.url}, **times) as fleet:
            doomed, other = [
                next(n.id for n in (await fleet.status()).nodes if n.url == server.url)
                for server in servers
            ]
            space = await fleet.workspace(node=doomed, **PLAIN)
            line.swallow()

            async def is_lost() -> bool:
                return space.state == "lost"

            await until(is_lost)
            for _ in range(2):
                with pytest.raises(NodeLost):
                    await space.files.read("x")
            with pytest.raises(NodeLost):
                await fleet.workspace(node=doomed, **PLAIN)
            await asyncio.wait_for(space.release(), 10)
            assert (await fleet.workspace(**PLAIN)).node == other
            status = await fleet.status()
            assert status.state == "degraded"
            assert {n.id: n.state for n in status.nodes} == {doomed: "lost", other: "ready"}


async def test_what_runs_goes_on_when_the_disk_gets_too_full_for_more(tmp_path: Path) -> None:
    with host(tmp_path) as first:
        async with fleet_of([first]) as fleet:
            space = await fleet.workspace(**PLAIN)
            process = await space.start("echo begun; read x; echo $x; exit 7", stdin=True)
            await process.wait_for("begun")
            kill_hard(first.pid)
            first.wait()
            there = f"ws://127.0.0.1:{port_of(first)}"
            with host(tmp_path, listen=there, min_free="1PiB"):
                await process.send("on\n")
                got = await process.result()
                assert (got.exit_code, got.stdout) == (7, "begun\non\n")
                assert (await space.run("echo more > f; cat f")).stdout == "more\n"
                with pytest.raises(NoCapacity) as refused:
                    await fleet.workspace(timeout=0.2, **PLAIN)
                assert refused.value.reason == "disk"


async def test_a_half_open_driver_is_evicted_by_adoption(tmp_path: Path) -> None:
    async with hosts(tmp_path, 1) as servers, Swallower(port_of(servers[0])) as line:
        via = {servers[0].url: line.url}
        async with fleet_of(servers, via=via, request_timeout=1.0, recovery_window=1.0) as silent:
            space = await silent.workspace(**PLAIN)
            process = await space.start("echo mine; sleep 600")
            await process.wait_for("mine")
            line.swallow()
            async with fleet_of(servers) as fleet:
                adopted = await fleet.adopt(space.id)
                (found,) = adopted.processes
                await found.wait_for("mine")
                line.flow()
                with pytest.raises(ExecutorTransportFailed):  # it does not get it back
                    for _ in range(50):
                        await space.run("true")
                        await asyncio.sleep(0.1)
                assert (await adopted.run("echo still")).stdout == "still\n"
                await adopted.release()
