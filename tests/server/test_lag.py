"""``onLag`` of process/start: whom a process waits for, and what is said about a gap."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail.process.output.output_log import RETENTION_BYTES
from tests.support.clients import MemoryClient, chunks_of
from tests.support.eventually import spin
from tests.support.gates import Gate, gate
from tests.support.servers import Served, serving


def numbers(last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, last + 1))


async def lose(client: MemoryClient) -> str:
    client.abort()
    await client.until_ended()
    return client.session


@asynccontextmanager
async def held_gate(path: Path) -> AsyncIterator[Gate]:
    with gate(path) as made:
        yield made


def the_child(served: Served) -> Any:
    (child,) = served.server.sessions.children()
    return child


async def test_a_client_that_only_listens_gets_everything() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "seq", "1", "900000", onLag="block")
        await client.until_closed("p")
        assert client.output("p") == numbers(900_000)
        await spin(lambda: not the_child(served).output.unread)


async def test_a_client_that_only_reads_gets_everything() -> None:
    async with serving() as served:
        client = await served.client()
        client.counted["p"] = 0
        await client.start("p", "seq", "1", "900000", onLag="block")
        assert await client.read_to_close("p") == numbers(900_000)


async def test_block_waits_for_the_next_client() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "seq", "1", "900000", onLag="block")
        await client.until_output("p", b"\n1000\n")
        session = await lose(client)
        child = the_child(served)
        await spin(lambda: child.output.blocked)
        assert child.output.log.bytes_total < 2 * RETENTION_BYTES + len(client.output("p"))
        got = {e["seq"]: base64.b64decode(e["chunk"]) for e in client.events("p")}
        again = await served.client(resumeSessionId=session)
        # Read once what was missed; what follows is notified, and nobody acknowledges anything.
        page = await again.read("p", afterSeq=max(got))
        assert "omitted" not in page
        await again.until(lambda: again._event("p", "closed"))
        for chunk in page["chunks"]:
            got[chunk["seq"]] = base64.b64decode(chunk["chunk"])
        for event in again.events("p"):
            if event["kind"] == "output":
                got[event["seq"]] = base64.b64decode(event["chunk"])
        assert b"".join(got[seq] for seq in sorted(got)) == numbers(900_000)
        assert sorted(got) == list(range(1, len(got) + 1))


async def test_what_was_sent_and_not_received_is_still_there() -> None:
    """A line that breaks with output on its way takes nothing with it."""
    async with serving() as served:
        client = await served.client()
        await client.start("p", "seq", "1", "900000", onLag="block")
        client.transport.pause_reading()
        child = the_child(served)
        await spin(lambda: child.output.blocked)
        received = len(client.output("p"))
        again = await served.client(resumeSessionId=await lose(client))
        after = max((e["seq"] for e in client.events("p")), default=0)
        rest = await again.read_to_close("p", after)
        assert client.output("p") + rest == numbers(900_000)
        assert received <= RETENTION_BYTES


async def test_an_ended_process_waits_for_who_was_not_there(tmp_path: Path) -> None:
    async with serving(retention=0.02) as served, held_gate(tmp_path / "gate") as held:
        client = await served.client(detachTtlMs=600_000)
        script = f"read l < {held.path}; echo late"
        await client.shell("p", script, onLag="block")
        await client.shell("q", script)
        session = await lose(client)
        held.open(2)
        (one,) = served.server.sessions._sessions.values()
        await spin(lambda: one.table.get("q") is None)
        again = await served.client(resumeSessionId=session)
        assert chunks_of(await again.read("p")) == b"late\n"
        # Now it was read, and goes as others do.
        await spin(lambda: one.table.get("p") is None)


async def test_a_take_over_loses_nothing_that_the_first_had_not_got() -> None:
    """What the new one hears from then on does not stand for what it has not asked for yet."""
    async with serving() as served:
        client = await served.client(resumeSecret=None)
        await client.start("p", "seq", "1", "900000", onLag="block")
        await client.until_output("p", b"1\n")
        got = {e["seq"]: base64.b64decode(e["chunk"]) for e in client.events("p")}
        client.transport.pause_reading()
        child = the_child(served)
        await spin(lambda: child.output.blocked)
        other = await served.client(resumeSessionId=client.session, resumeSecret=client.secret)
        await spin(lambda: child.output.blocked and not other.transport.buffered)
        client.transport.resume_reading()
        await client.until_ended()
        # Nobody has asked for the middle yet, and it is still there.
        page = await other.read("p", afterSeq=max(got))
        assert "omitted" not in page
        await other.until(lambda: other._event("p", "closed"))
        got |= {c["seq"]: base64.b64decode(c["chunk"]) for c in page["chunks"]}
        for event in other.events("p"):
            if event["kind"] == "output":
                got[event["seq"]] = base64.b64decode(event["chunk"])
        assert b"".join(got[seq] for seq in sorted(got)) == numbers(900_000)


async def test_drop_goes_on_and_says_what_is_missing() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "seq", "1", "900000", onLag="drop")
        client.transport.pause_reading()
        child = the_child(served)
        await spin(lambda: child.closed)
        client.transport.resume_reading()
        await client.until(lambda: client._event("p", "closed"))
        events = client.events("p")
        (gap,) = [event["omitted"] for event in events if "omitted" in event]
        assert gap["bytes"] + len(client.output("p")) == len(numbers(900_000))
        assert gap["chunks"] + len(events) == events[-1]["seq"]
        # A reader is told the same.
        first = next(event["seq"] for event in events if "omitted" in event)
        told = [event["seq"] for event in events if event["seq"] < first]
        page = await client.read("p", afterSeq=told[-1] if told else 0)
        assert page["omitted"] == gap


async def test_without_it_output_is_dropped_beyond_the_retention_while_nobody_is_there() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "seq", "1", "900000")
        session = await lose(client)
        child = the_child(served)
        await spin(lambda: child.closed)
        again = await served.client(resumeSessionId=session)
        page = await again.read("p")
        assert page["omitted"]["bytes"] + len(chunks_of(page)) == len(numbers(900_000))


@pytest.mark.parametrize("bad", ["wait", "", 1, True, {}])
async def test_another_word_is_refused(bad: Any) -> None:
    async with serving() as served:
        client = await served.client()
        params = client.start_params("p", "true", onLag=bad)
        code, text = await client.refused("process/start", params)
        assert code == -32602
        assert "onLag" in text


async def test_many_that_wait_do_not_hold_each_other_up() -> None:
    async with serving() as served:
        client = await served.client()
        for number in range(8):
            await client.start(f"p{number}", "seq", "1", "200000", onLag="block")
        async with asyncio.timeout(30):
            for number in range(8):
                await client.until_closed(f"p{number}")
                assert client.output(f"p{number}") == numbers(200_000)
