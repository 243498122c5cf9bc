"""B of the fault matrix, the rows that need a whole server and are not in test_session_faults."""

from __future__ import annotations

import asyncio
import base64
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.clients import Refused, dialled
from tests.support.eventually import spin
from tests.support.processes import ended
from tests.support.servers import ServerProcess, server_process
from tests.system.test_session_faults import server

__all__ = ["server"]  # the fixture

MIB = 1024 * 1024


async def test_b2_a_session_after_its_time(tmp_path: Path) -> None:
    with server_process(tmp_path / "state", "--detach-ttl", "0.3") as short:
        async with dialled(short.url) as client:
            session = client.session
            await client.shell("p", "echo $$; trap 'exit 0' TERM; while :; do sleep 0.01; done")
            await client.until_output("p", b"\n")
            pid = int(client.output("p"))
        assert await asyncio.to_thread(ended, pid)
        async with dialled(short.url, handshake=False) as client:
            with pytest.raises(Refused, match="unknown session id"):
                await client.handshake(resumeSessionId=session)
        assert short.stop() == (0, b"")


@pytest.mark.parametrize("on_lag", [None, "drop"])
async def test_b3_much_output_while_nobody_is_there(
    server: ServerProcess, tmp_path: Path, on_lag: str | None
) -> None:
    """The tail is there, and the gap before it is told to the byte."""
    size = 20 * MIB
    done = tmp_path / "done"
    async with dialled(server.url) as client:
        session = client.session
        more = {} if on_lag is None else {"onLag": on_lag}
        script = f"read x; head -c {size} /dev/zero | tr '\\0' x; echo end; touch {done}"
        await client.shell("b3", script, pipeStdin=True, **more)
        await client.call("process/write", {"processId": "b3", "writeId": "1", "chunk": "Cg=="})
        client.abort()
    await spin(done.exists)
    async with dialled(server.url, handshake=False) as client:
        await client.resume(session)
        last = await client.call("process/read", {"processId": "b3", "waitMs": 20_000})
        while not last["closed"]:
            await asyncio.sleep(0.01)
            last = await client.call("process/read", {"processId": "b3"})
        kept = sum(len(chunk["chunk"]) * 3 // 4 for chunk in last["chunks"])
        assert kept <= MIB + 3 * len(last["chunks"])
        gap = last["omitted"]
        exact = sum(len(base64.b64decode(chunk["chunk"])) for chunk in last["chunks"])
        assert gap["bytes"] + exact == size + 4
        await client.call("session/close")


async def test_b4_a_silent_peers_session_is_taken_over_at_once(server: ServerProcess) -> None:
    async with dialled(server.url, handshake=False) as silent:
        await silent.handshake(resumeSecret=None)
        await silent.shell("p", "exec sleep 600")
        silent.reading.clear()
        async with dialled(server.url, handshake=False) as client:
            params = {"resumeSessionId": silent.session, "resumeSecret": silent.secret}
            await client.handshake(**params)
            listed = await client.call("process/list")
            assert [one["processId"] for one in listed["processes"]] == ["p"]
            await client.call("session/close")
        silent.reading.set()


async def test_b6_guessed_and_foreign_ids(server: ServerProcess) -> None:
    async with dialled(server.url) as mine:
        for guess in (mine.session[:-1], mine.session.upper() + "x", "", "x" * 1000):
            async with dialled(server.url, handshake=False) as other:
                with pytest.raises(Refused) as refused:
                    await other.handshake(resumeSessionId=guess)
                assert refused.value.code == -32600
        async with dialled(server.url, handshake=False) as other:
            wrong = {"resumeSessionId": mine.session, "resumeSecret": "guess"}
            with pytest.raises(Refused) as refused:
                await other.handshake(**wrong)
            assert refused.value.code == -32010
        await mine.call("environment/status")  # and is not disturbed
        await mine.call("session/close")


async def test_b10_a_long_poll_holds_up_nobody(server: ServerProcess) -> None:
    async with dialled(server.url) as client:
        await client.shell("p", "exec sleep 600")
        poll = asyncio.create_task(
            client.call("process/read", {"processId": "p", "waitMs": 30_000})
        )
        for _ in range(20):
            await client.call("environment/status")
            assert not poll.done()
        await client.call("process/terminate", {"processId": "p"})
        assert (await poll)["exited"]
        await client.call("session/close")


async def test_b11_small_echoes_do_not_wait_for_more(server: ServerProcess) -> None:
    """Nagle's algorithm and delayed acknowledgements would make it 40 ms each."""
    async with dialled(server.url) as client:
        times = []
        for _ in range(50):
            began = time.perf_counter()
            await client.call("environment/status")
            times.append(time.perf_counter() - began)
        print(f"median {statistics.median(times) * 1000:.2f} ms")
        assert min(times) < 0.030
        await client.call("session/close")


async def test_b12_many_idle_connections(tmp_path: Path) -> None:
    count = 300
    with server_process(tmp_path / "state", "--detach-ttl", "0.2") as short:
        async with dialled(short.url):
            pass
        before = short.rss()
        async with AsyncExitStack() as stack:
            for _ in range(count):
                await stack.enter_async_context(dialled(short.url))
            each = (short.rss() - before) / count
        print(f"{each / 1024:.1f} KiB each")
        assert each < 40_000
        assert short.stop() == (0, b"")
