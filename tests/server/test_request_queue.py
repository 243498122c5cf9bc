"""Which request waits for which: exec-server.md 2.6, our own defaults, and who is not held up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from handrail.server import request_queue
from handrail.server.connection import Connection
from tests.support.clients import MemoryClient, Refused, b64, chunks_of
from tests.support.eventually import spin
from tests.support.gates import gate
from tests.support.servers import Served, serving

LONG = 3_600_000
STRICT_ONE = {"concurrent_requests": 1, "strict_lanes": True}
STRICT_FOUR = {"concurrent_requests": 4, "strict_lanes": True}


def answered(client: MemoryClient) -> list[Any]:
    """The ids of answers, in the order they came."""
    return [message["id"] for message in client.messages if "id" in message]


def names(listing: dict[str, Any]) -> list[str]:
    return [process["processId"] for process in listing["processes"]]


async def waiting_at(served: Served, path: str, client: MemoryClient | None = None) -> MemoryClient:
    """A client with one process ``p`` that writes a line once the gate is opened."""
    client = client or await served.client()
    await client.shell("p", f"read line < {path}; echo $line; exec sleep 600")
    return client


async def test_one_at_a_time_is_in_the_order_of_arrival(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving(**STRICT_ONE) as served:
            client = await waiting_at(served, held.path)
            other = await served.client()
            before = len(answered(client))
            poll = client.post("process/read", processId="p", waitMs=LONG)
            rest = [
                client.post("environment/status"),
                client.post("process/list"),
                client.post("process/terminate", processId="p"),
                client.post("nosuch"),
                client.post("process/read", processId="p"),
            ]
            # Another connection is another line.
            assert await other.call("environment/status") == {"status": "ready"}
            assert len(answered(client)) == before
            held.open()
            await poll
            await asyncio.wait(rest)
            ids = answered(client)[before:]
            assert ids == sorted(ids)
            assert len(ids) == 6


async def test_four_at_a_time_with_a_lane_for_control(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving(**STRICT_FOUR) as served:
            client = await waiting_at(served, held.path)
            polls = [client.post("process/read", processId="p", waitMs=LONG) for _ in range(6)]
            assert await client.call("environment/status") == {"status": "ready"}
            assert not any(poll.done() for poll in polls)
            result = await client.call("process/terminate", processId="p")
            assert result == {"running": True}
            # The first four see the exit; the two that waited for a permit see it too.
            for page in await asyncio.wait_for(asyncio.gather(*polls), 30):
                assert page["exited"] is True


async def test_a_fifth_waits_for_a_permit(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving(**STRICT_FOUR) as served:
            client = await waiting_at(served, held.path)
            polls = [client.post("process/read", processId="p", waitMs=LONG) for _ in range(4)]
            start = client.post("process/start", client.start_params("q", "true"))
            # The list is of the other lane, and says that the start has not begun.
            assert names(await client.call("process/list")) == ["p"]
            assert not start.done()
            held.open()
            await asyncio.wait_for(asyncio.gather(*polls), 30)
            await asyncio.wait_for(start, 30)
            await client.until_closed("q")


async def test_by_default_long_polls_hold_up_nobody(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await waiting_at(served, held.path)
            polls = [client.post("process/read", processId="p", waitMs=LONG) for _ in range(100)]
            await client.start("q", "cat", pipeStdin=True)
            assert await client.write("q", b"hello", "1") == "accepted"
            await client.until_output("q", b"hello")
            assert chunks_of(await client.read("q")) == b"hello"
            assert names(await client.call("process/list")) == ["p", "q"]
            assert not any(poll.done() for poll in polls)
            held.open()
            pages = await asyncio.wait_for(asyncio.gather(*polls), 30)
            assert {chunks_of(page) for page in pages} == {b"go\n"}


async def test_a_full_stdin_holds_up_nobody() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600", pipeStdin=True)
        block = b64(bytes(64 * 1024))
        writes = [
            client.post("process/write", processId="p", chunk=block, writeId=str(number))
            for number in range(200)
        ]
        await client.shell("q", "echo well")
        await client.until_closed("q")
        assert chunks_of(await client.read("q")) == b"well\n"
        full = [write for write in writes if not write.done()]
        assert 50 < len(full) < 100  # 128 are queued, one is in the pipe
        # One more waits behind them, and not the others behind it.
        more = client.post("process/write", processId="p", chunk="", writeId="more")
        assert (await client.call("process/terminate", processId="p"))["running"] is True
        await client.until_closed("p")
        done, _ = await asyncio.wait([*full, more], timeout=30)
        assert len(done) == len(full) + 1


async def test_a_full_stdin_leaves_the_control_lane_free() -> None:
    async with serving(**STRICT_FOUR) as served:
        client = await served.client()
        await client.start("p", "sleep", "600", pipeStdin=True)
        block = b64(bytes(1024 * 1024))
        for number in range(20):
            client.post("process/write", processId="p", chunk=block, writeId=str(number))
        assert await client.call("environment/status") == {"status": "ready"}
        assert (await client.call("process/terminate", processId="p"))["running"] is True
        await client.until_closed("p")
        assert (await client.read("p"))["closed"] is True


async def test_writes_that_wait_for_room_keep_their_order(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            await client.shell("p", f"read line < {held.path}; exec cat", pipeStdin=True)
            blocks = [bytes([number]) * 64 * 1024 for number in range(160)]
            writes = [
                client.post("process/write", processId="p", chunk=b64(block), writeId=str(number))
                for number, block in enumerate(blocks)
            ]
            await client.call("environment/status")
            assert not all(write.done() for write in writes)
            held.open()
            statuses = await asyncio.wait_for(asyncio.gather(*writes), 30)
            assert {status["status"] for status in statuses} == {"accepted"}
            await client.call("process/closeStdin", processId="p")
            await client.until_closed("p")
            assert client.output("p") == b"".join(blocks)


async def test_three_thousand_pipelined_requests_are_all_answered() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        before = len(answered(client))
        sent = []
        for number in range(1000):
            chunk = b64(b"%d\n" % number)
            sent += [
                client.post("process/write", processId="p", chunk=chunk, writeId=str(number)),
                client.post("process/read", processId="p", afterSeq=2**64 - 1),
                client.post("environment/status"),
            ]
        await asyncio.wait_for(asyncio.gather(*sent), 30)
        ids = answered(client)[before:]
        assert len(ids) == len(set(ids)) == 3000
        await client.call("process/closeStdin", processId="p")
        await client.until_closed("p")
        assert client.output("p") == b"".join(b"%d\n" % number for number in range(1000))


# --- bounds -------------------------------------------------------------------------------------


async def test_answers_that_are_not_read_stop_the_reading() -> None:
    async with serving() as served:
        client = await served.client()
        side = served.connection(client)
        client.transport.pause_reading()
        sent = [client.post("environment/info") for _ in range(10_000)]
        await spin(lambda: side.calls._held)
        for _ in range(100):  # nothing more is taken
            await asyncio.sleep(0)
        one = len(json.dumps(client.messages[0]))
        assert side.transport.buffered < request_queue.MOST_UNREAD + 2 * one
        assert side.calls._unanswered == 0
        client.transport.resume_reading()
        await asyncio.wait_for(asyncio.gather(*sent), 30)


async def test_unanswered_requests_stop_the_reading(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await waiting_at(served, held.path)
            side = served.connection(client)
            polls = []
            # A few at a time, so that each finds a free permit and gives it back.
            for count in range(0, request_queue.MOST_REQUESTS + 1000, 50):
                polls += [
                    client.post("process/read", processId="p", waitMs=LONG) for _ in range(50)
                ]
                await spin(lambda count=count: side.calls._held or len(side.calls._tasks) >= count)
            last = client.post("environment/status")
            await spin(lambda: side.calls._held)
            for _ in range(100):
                await asyncio.sleep(0)
            assert side.calls._unanswered == request_queue.MOST_REQUESTS + 1
            assert not last.done()
            held.open()
            await asyncio.wait_for(asyncio.gather(*polls), 30)
            assert await asyncio.wait_for(last, 30) == {"status": "ready"}
            assert side.calls._unanswered == 0
            assert not side.calls._held


async def test_unanswered_requests_are_bounded_in_bytes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_queue, "MOST_REQUEST_BYTES", 2 * 1024 * 1024)
    chunk = b64(bytes(600_000))
    async with serving() as served:
        client = await served.client()
        side = served.connection(client)
        await client.start("p", "sleep", "600", pipeStdin=True)
        writes = [
            client.post("process/write", processId="p", chunk=chunk, writeId=str(number))
            for number in range(30)
        ]
        last = client.post("environment/status")
        # Some are in the pipe and the queue; of the rest only a few wait with us.
        await spin(lambda: side.calls._held and writes[10].done())
        assert not writes[-1].done()
        assert side.calls._unanswered <= request_queue.MOST_REQUEST_BYTES // len(chunk) + 1
        assert not last.done()
        (session,) = served.server.sessions._sessions.values()
        await served.server.sessions.close(session)
        await asyncio.wait([*writes, last], timeout=30)
        assert last.done()
        assert (side.calls._large_bytes, side.calls._held) == (0, False)


async def test_long_polls_of_a_client_that_does_not_read_wait_for_it(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            side = served.connection(client)
            await client.shell("p", f"read line < {held.path}; head -c 65536 /dev/zero; sleep 600")
            client.transport.pause_reading()
            polls = [client.post("process/read", processId="p", waitMs=LONG) for _ in range(1000)]
            await spin(lambda: side.calls._unanswered == 1000)
            held.open()
            (child,) = served.server.sessions.children()
            await spin(lambda: child.output.log.bytes_total == 65536)
            for _ in range(100):
                await asyncio.sleep(0)
            assert side.transport.buffered < request_queue.MOST_UNREAD + 2 * 87_500
            client.transport.resume_reading()
            pages = await asyncio.wait_for(asyncio.gather(*polls), 30)
            assert all(chunks_of(page) for page in pages)


# --- the end of a connection --------------------------------------------------------------------


async def test_what_is_queued_is_not_begun_after_the_end(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving(**STRICT_ONE) as served:
            client = await waiting_at(served, held.path)
            client.post("process/read", processId="p", waitMs=LONG)
            for number in range(5):
                params = client.start_params(f"q{number}", "sleep", "600")
                client.post("process/start", params)
            side = served.connection(client)
            await spin(lambda: side.calls._unanswered == 6)
            client.abort()
            await client.until_ended()
            again = await served.client(resumeSessionId=client.session)
            assert names(await again.call("process/list")) == ["p"]
            counts = served.metrics()
            count = 'handrail_requests_total{method="%s",result="disconnected"}'
            assert counts[count % "process/start"] == 5
            assert counts[count % "process/read"] == 1
            assert side.calls._unanswered == 0


class Nowhere:
    """A transport that leads nowhere."""

    kind = "memory"
    peer = "nowhere"
    buffered = 0

    def send(self, *parts: bytes) -> None: ...

    def close(self, code: int = 1000, reason: str = "") -> None: ...


async def test_a_start_cut_before_its_first_step_is_counted_and_its_process_kept() -> None:
    async with serving() as served:
        client = await served.client()
        side = Connection(served.server, "test")
        side.connected(Nowhere())  # type: ignore[arg-type]
        side.message('{"id":1,"method":"initialize","params":{"clientName":"x"}}')
        side.message('{"method":"initialized"}')
        params = client.start_params("p", "sleep", "600")
        side.message(json.dumps({"id": 2, "method": "process/start", "params": params}))
        side.disconnected("before the first step")
        assert side.session is not None
        again = await served.client(resumeSessionId=side.session.id)
        # As the client expects who was cut off: it finds the process and can end it.
        assert names(await again.call("process/list")) == ["p"]
        assert await again.call("process/terminate", processId="p") == {"running": True}
        counts = served.metrics()
        name = 'handrail_requests_total{method="process/start",result="disconnected"}'
        assert counts[name] == 1
        assert side.calls._unanswered == 0


# --- start and terminate ------------------------------------------------------------------------


async def start_and_terminate(served: Served, pairs: int) -> None:
    client = await served.client()
    starts, ends = [], []
    for number in range(pairs):
        params = client.start_params(f"p{number}", "sleep", "600")
        starts.append(client.post("process/start", params))
        ends.append(client.post("process/terminate", processId=f"p{number}"))
    await asyncio.wait_for(asyncio.gather(*starts), 30)
    for end in await asyncio.wait_for(asyncio.gather(*ends), 30):
        assert end == {"running": True}
    for number in range(pairs):
        await client.until_closed(f"p{number}")
    for process in (await client.call("process/list"))["processes"]:
        assert process["state"] == "closed"


async def test_a_terminate_behind_its_start_is_not_lost() -> None:
    async with serving() as served:
        await start_and_terminate(served, 100)


async def test_a_terminate_reaches_a_start_that_waits_for_a_permit() -> None:
    async with serving(**STRICT_FOUR) as served:
        await start_and_terminate(served, 20)


async def test_a_terminate_waits_behind_a_start_that_waits_for_a_permit() -> None:
    async with serving(**STRICT_FOUR) as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        polls = [client.post("process/read", processId="p", waitMs=LONG) for _ in range(4)]
        start = client.post("process/start", client.start_params("q", "sleep", "600"))
        end = client.post("process/terminate", processId="q")
        again = client.post("process/start", client.start_params("q", "sleep", "600"))
        await client.call("process/terminate", processId="p")
        await asyncio.wait_for(asyncio.gather(*polls), 30)
        await asyncio.wait_for(start, 30)
        assert await asyncio.wait_for(end, 30) == {"running": True}
        with pytest.raises(Refused, match="process q already exists"):
            await asyncio.wait_for(again, 30)
        await client.until_closed("q")
