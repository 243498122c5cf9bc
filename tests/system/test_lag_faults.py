"""B3 and B8 of the fault matrix, and lines that break under a flood that may lose nothing."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Iterator

import pytest

from tests.support.clients import chunks_of, dialled
from tests.support.eventually import LIMIT
from tests.support.servers import ServerProcess, server_process

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("lag") / "state") as server:
        yield server
        assert server.stop() == (0, b"")


def counters(last: int, end: bytes) -> bytes:
    return b"".join(b"%d%b" % (number, end) for number in range(1, last + 1))


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "tty"])
async def test_a_line_that_breaks_again_and_again_loses_nothing(
    server: ServerProcess, tty: bool
) -> None:
    """A flood, cut wherever it happens to be; by content, each number once and in order."""
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    last = 400_000 if tty else 2_000_000
    got: dict[int, bytes] = {}
    session = ""
    cuts = 0
    closed = False
    while not closed:
        async with dialled(server.url, handshake=False) as client:
            if not session:
                await client.handshake()
                session = client.session
                await client.start("p", "seq", "1", str(last), tty=tty, onLag="block")
            else:
                await client.resume(session)
                after = max(got, default=0)
                page = await client.read("p", afterSeq=after)
                assert "omitted" not in page, seed
                for chunk in page["chunks"]:
                    got[chunk["seq"]] = base64.b64decode(chunk["chunk"])
                closed = page["closed"]
            enough = 0 if closed else choose.randrange(1, 30)
            await client.until(
                lambda client=client, enough=enough: (
                    len(client.events("p")) >= enough or client._event("p", "closed")
                )
            )
            client.abort()
            await client.until_ended()
            cuts += 1
            for event in client.events("p"):
                # Only what follows without a gap: a client knows its last number.
                if event["kind"] == "output" and event["seq"] - 1 in (*got, 0):
                    got[event["seq"]] = base64.b64decode(event["chunk"])
    data = b"".join(got[seq] for seq in sorted(got))
    assert data == counters(last, b"\r\n" if tty else b"\n"), seed
    assert cuts > 1
    print(f"\n{len(data)} bytes over {cuts} cut lines, none lost (seed {seed})")


async def test_b8_a_slow_consumer_in_drop_mode(server: ServerProcess) -> None:
    """The child is free, memory stays bounded, and the gap is told to the byte."""
    size = 60_000_000
    async with dialled(server.url, max_queue=4) as slow, dialled(server.url) as other:
        slow.counted["p"] = 0
        before = server.rss()
        script = "head -c %d /dev/zero; echo end >&2; exit 3"
        await slow.shell("p", script % size, onLag="drop")
        await slow.until(lambda: slow.counted["p"])
        slow.reading.clear()
        # Its end does not wait for anybody.
        async with asyncio.timeout(LIMIT):
            while True:
                counts = await asyncio.to_thread(server.metrics)
                if not counts["handrail_processes_active"]:
                    break
        await other.start("cat", "cat", pipeStdin=True)
        await other.write("cat", b"hello", "1")
        await other.until_output("cat", b"hello")
        assert server.rss() < before + 16 * MIB
        before_the_end = slow.counted.pop("p")
        slow.reading.set()
        exited = await slow.until_exited("p")
        assert exited["exitCode"] == 3
        await slow.until(lambda: slow._event("p", "closed"))
        page = await slow.read("p")
        whole = size + len(b"end\n")
        assert page["omitted"]["bytes"] + len(chunks_of(page)) == whole
        # And by the notifications alone; the first of them were only counted.
        gaps = [event["omitted"] for event in slow.events("p") if "omitted" in event]
        assert gaps
        told = before_the_end + len(slow.output("p")) + sum(gap["bytes"] for gap in gaps)
        assert told == whole
        await other.call("session/close")


async def test_b3_output_while_detached_is_the_tail_and_an_explicit_gap(
    server: ServerProcess,
) -> None:
    size = 20_000_000
    async with dialled(server.url) as client:
        await client.shell("p", f"read l; head -c {size} /dev/zero", pipeStdin=True)
        await client.write("p", b"\n", "1")
        client.abort()
        await client.until_ended()
        seen = max((event["seq"] for event in client.events("p")), default=0)
        got = len(client.output("p"))
        session = client.session
    async with dialled(server.url, handshake=False) as again:
        await again.resume(session)
        after, missed = seen, 0
        while True:
            page = await again.read("p", afterSeq=after, waitMs=60_000)
            missed += page.get("omitted", {"bytes": 0})["bytes"]
            got += len(chunks_of(page))
            after = page["nextSeq"] - 1
            if page["closed"]:
                break
        assert got + missed == size
