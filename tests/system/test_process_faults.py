"""D10 of the fault matrix, and what becomes of children when their server stops."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.clients import dialled
from tests.support.eventually import LIMIT
from tests.support.processes import alive, children, ended, until_ended
from tests.support.servers import server_process

READY = "echo ready $$; while :; do sleep 0.01; done"


@pytest.mark.parametrize("permits", [None, 1, 3])
async def test_d10_a_terminate_behind_each_start(tmp_path: Path, permits: int | None) -> None:
    args = () if permits is None else ("--concurrent-requests", str(permits))
    with server_process(tmp_path / "state", *args) as server:
        async with dialled(server.url) as client:
            starts, ends = [], []
            for number in range(100):
                tty = number % 10 == 0
                params = client.start_params(f"p{number}", "sleep", "600", tty=tty)
                starts.append(client.post("process/start", params))
                ends.append(client.post("process/terminate", processId=f"p{number}"))
            async with asyncio.timeout(LIMIT):
                await asyncio.gather(*starts)
                assert {str(end) for end in await asyncio.gather(*ends)} == {"{'running': True}"}
            for number in range(100):
                await client.until_closed(f"p{number}")
            # And the keeper has nobody left.
            keeper = server.keeper()
            for pid in children(keeper):
                await until_ended(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_ends_all_children_with_grace(tmp_path: Path, number: int) -> None:
    with server_process(tmp_path / "state") as server:
        async with dialled(server.url) as client, dialled(server.url) as other:
            for tty in (False, True):
                # A terminal hangs up before it is asked to end.
                script = f"trap '' HUP; trap 'echo bye > {tmp_path}/{tty}; exit 0' TERM; {READY}"
                await client.shell(str(tty), script, tty=tty)
            await client.shell("deaf", f"trap '' TERM HUP INT; {READY}")
            daemon = "(setsid sh -c 'echo daemon $$; exec sleep 600' &); sleep 600"
            await other.shell("daemon", daemon)
            family = []
            for owner, name in ((client, "False"), (client, "True"), (client, "deaf")):
                await owner.until_output(name, b"\n")
                family.append(int(owner.output(name).split()[1]))
            await other.until_output("daemon", b"\n")
            family.append(int(other.output("daemon").split()[1]))
            os.kill(server.pid, number)
            for one in (client, other):
                assert await one.until_ended() == (1001, "the server stops")
            assert await asyncio.to_thread(server.wait) == 0
            for pid in family:
                assert not alive(pid)
        for tty in (False, True):
            assert (tmp_path / str(tty)).read_text() == "bye\n"


async def test_a_stop_does_not_wait_for_a_client_that_does_not_answer(tmp_path: Path) -> None:
    with server_process(tmp_path / "state") as server:
        async with dialled(server.url, max_queue=1) as client:
            client.counted["p"] = 0
            await client.start("p", "yes")
            await client.until(lambda: client.counted["p"])
            client.reading.clear()
            assert (await asyncio.to_thread(server.stop))[0] == 0
            client.reading.set()


async def test_keep_leaves_children_to_the_keeper(tmp_path: Path) -> None:
    with server_process(tmp_path / "state", "--on-stop", "keep") as server:
        keeper = server.keeper()
        async with dialled(server.url) as client:
            await client.shell("p", f"trap 'echo bye > {tmp_path}/bye; exit' TERM; {READY}")
            await client.start("q", "cat", tty=True)
            await client.until_output("p", b"\n")
            rows = (await client.call("process/list"))["processes"]
            pids = [row["pid"] for row in rows]
            os.kill(server.pid, signal.SIGTERM)
            code, reason = await client.until_ended()
            assert code == 1012
            assert "resume" in reason
            assert await asyncio.to_thread(server.wait) == 0
        assert alive(keeper)
        assert all(alive(pid) for pid in pids)
        assert not (tmp_path / "bye").exists()
        # Ours to end, by their keeper.
        os.kill(keeper, signal.SIGTERM)
        for pid in (*pids, keeper):
            assert ended(pid)


async def test_a_detached_session_ends_with_its_time(tmp_path: Path) -> None:
    with server_process(tmp_path / "state", "--detach-ttl", "0.1") as server:
        async with dialled(server.url) as client:
            await client.shell("p", "setsid sleep 600 & echo $!; exec sleep 600")
            await client.until_output("p", b"\n")
            (row,) = (await client.call("process/list"))["processes"]
            family = [row["pid"], int(client.output("p"))]
            client.abort()
            await client.until_ended()
        for pid in family:
            await until_ended(pid)
        async with dialled(server.url, handshake=False) as late:
            answer = await late.refused(
                "initialize", clientName="x", resumeSessionId=client.session
            )
            assert answer == (-32600, f"unknown session id {client.session}")
