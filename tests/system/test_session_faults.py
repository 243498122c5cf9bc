"""B of the fault matrix: connections that break, race, or do not read."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.clients import Client, Refused, SocketClient, dialled
from tests.support.eventually import LIMIT
from tests.support.gates import gate
from tests.support.processes import alive
from tests.support.servers import ServerProcess, server_process

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    state: Path = tmp_path_factory.mktemp("sessions") / "state"
    with server_process(state) as server:
        yield server
        assert server.stop() == (0, b"")


def chunks(client: Client, process_id: str) -> dict[int, bytes]:
    return {
        event["seq"]: base64.b64decode(event["chunk"])
        for event in client.events(process_id)
        if event["kind"] == "output"
    }


async def test_b1_a_reset_loses_nothing(server: ServerProcess, tmp_path: Path) -> None:
    """A counter, cut again and again wherever it happens to be; the whole is without a gap."""
    rounds, lines = 5, 20_000
    got: dict[int, bytes] = {}
    with gate(tmp_path / "gate") as held:
        script = (
            f"i=0; while [ $i -lt {rounds} ]; do read l < {held.path};"
            f" seq $((i*{lines}+1)) $((i*{lines}+{lines})); i=$((i+1)); done; exit 7"
        )
        session = ""
        for number in range(rounds):
            async with dialled(server.url, handshake=False) as client:
                if number == 0:
                    await client.handshake()
                    session = client.session
                    await client.shell("p", script)
                else:
                    await client.resume(session)
                held.open()
                # Some of this round's output, wherever it stands then.
                await client.until(lambda client=client: chunks(client, "p"))
                client.abort()
                await client.until_ended()
                got.update(chunks(client, "p"))
        async with dialled(server.url, handshake=False) as client:
            await client.resume(session)
            after = 0
            while True:
                page = await client.read("p", afterSeq=after, waitMs=60_000)
                assert "omitted" not in page
                for chunk in page["chunks"]:
                    data = base64.b64decode(chunk["chunk"])
                    # What was notified before the cut is what is read after it.
                    assert got.setdefault(chunk["seq"], data) == data
                after = page["nextSeq"] - 1
                if page["closed"]:
                    break
            assert page["exitCode"] == 7
    assert sorted(got) == list(range(1, len(got) + 1))
    data = b"".join(got[seq] for seq in sorted(got))
    assert data == b"".join(b"%d\n" % n for n in range(1, rounds * lines + 1))


async def test_b5_twenty_clients_race(server: ServerProcess) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(dialled(server.url))
        await first.start("p", "sleep", "600")
        racers = [
            await stack.enter_async_context(dialled(server.url, handshake=False)) for _ in range(20)
        ]
        params = {"clientName": "x", "resumeSessionId": first.session}
        first.abort()
        won: list[SocketClient] = []
        async with asyncio.timeout(LIMIT):
            while not won:  # as long as the server has not noticed that the first is gone
                answers = await asyncio.gather(
                    *(racer.post("initialize", params) for racer in racers), return_exceptions=True
                )
                refusals = [answer for answer in answers if isinstance(answer, Refused)]
                assert {refusal.code for refusal in refusals} == {-32010}
                won = [r for r, a in zip(racers, answers, strict=True) if isinstance(a, dict)]
        assert len(won) == 1
        assert len(refusals) == 19
        won[0].notify("initialized")
        assert (await won[0].read("p"))["exited"] is False
        await won[0].call("session/close")


async def test_b7_a_client_that_does_not_read_stops_its_child_and_nobody_else(
    server: ServerProcess,
) -> None:
    size = 40_000_000
    async with dialled(server.url, max_queue=4) as slow, dialled(server.url) as other:
        slow.counted["p"] = 0
        before = server.rss()
        await slow.start("p", "head", "-c", str(size), "/dev/zero")
        (row,) = (await slow.call("process/list"))["processes"]
        await slow.until(lambda: slow.counted["p"])
        slow.reading.clear()
        await other.start("cat", "cat", pipeStdin=True)
        for number in range(200):
            await other.write("cat", b"<%d>" % number, str(number))
            await other.until_output("cat", b"<%d>" % number)
        # Held by nothing but its full pipe.
        assert alive(row["pid"])
        assert server.rss() < before + 16 * MIB
        slow.reading.set()
        await slow.until(lambda: slow.counted["p"] == size)
        exited = await slow.until_exited("p")
        assert exited["exitCode"] == 0


async def test_b9_an_echo_beside_a_flood_on_the_same_connection(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        client.counted["flood"] = 0
        await client.start("flood", "yes")
        await client.start("echo", "cat", pipeStdin=True)
        await client.until(lambda: client.counted["flood"])
        for number in range(15):
            before = client.counted["flood"]
            await client.write("echo", b"<%d>" % number, str(number))
            await client.until_output("echo", b"<%d>" % number)
            assert await client.call("environment/status") == {"status": "ready"}
            # It is a flood that the echo came through.
            await client.until(lambda before=before: client.counted["flood"] > before)
        assert await client.call("process/terminate", processId="flood") == {"running": True}
        await client.until_exited("flood")


async def test_b9_floods_share_a_connection(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        names = [f"flood {number}" for number in range(4)]
        for name in names:
            client.counted[name] = 0
            await client.start(name, "yes", name, tty=name.endswith("3"))
        await client.until(lambda: min(client.counted.values()) > 2 * MIB)
        for name in names:
            await client.call("process/terminate", processId=name)
        for name in names:
            assert (await client.until_exited(name))["exitCode"] == 137


async def test_a_take_over_of_a_client_that_does_not_read(server: ServerProcess) -> None:
    async with dialled(server.url, handshake=False, max_queue=4) as stuck:
        await stuck.handshake(resumeSecret=None)
        stuck.counted["p"] = 0
        await stuck.start("p", "yes")
        await stuck.until(lambda: stuck.counted["p"])
        stuck.reading.clear()
        async with dialled(server.url, handshake=False) as client:
            client.counted["p"] = 0
            # At once: a secret does not wait for anybody to be noticed.
            await client.handshake(resumeSessionId=stuck.session, resumeSecret=stuck.secret)
            await client.until(lambda: client.counted["p"] > 4 * MIB)
            await client.call("session/close")
        stuck.reading.set()
        code, _ = await stuck.until_ended()
        assert code in (1006, 1008)  # it may have been too far behind to be told


async def test_metrics_of_a_real_server(tmp_path: Path) -> None:
    with server_process(tmp_path / "state") as server:
        async with dialled(server.url) as client:
            await client.shell("p", "exit 3")
            await client.until_closed("p")
            counts = await asyncio.to_thread(server.metrics)
            assert counts['handrail_requests_total{method="process/start",result="success"}'] == 1
            assert counts['handrail_processes_finished_total{result="error"}'] == 1
            assert counts["handrail_processes_active"] == 0
            assert counts['handrail_connections_active{transport="websocket"}'] == 1
        async with asyncio.timeout(LIMIT):
            while (await asyncio.to_thread(server.metrics))[
                'handrail_connections_active{transport="websocket"}'
            ]:
                pass
