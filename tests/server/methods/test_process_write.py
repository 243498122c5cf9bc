"""``process/write`` and ``process/closeStdin``: statuses, and every id applied once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from handrail.process.stdin.pump import QUEUE_BYTES
from tests.support.clients import MemoryClient, Refused, b64
from tests.support.eventually import spin
from tests.support.gates import gate
from tests.support.servers import serving

FAILED = (-32603, "failed to write to process stdin")


def put(client: MemoryClient, data: bytes, write_id: str) -> asyncio.Future[dict[str, str]]:
    return client.post("process/write", processId="p", chunk=b64(data), writeId=write_id)


async def fill(client: MemoryClient) -> int:
    """Write to a process that does not read until one write has to wait; how many went in."""
    number = 0
    while True:
        write = put(client, bytes(64 * 1024), f"fill {number}")
        await client.call("environment/status")
        if not write.done():
            return number
        number += 1


async def finish(client: MemoryClient) -> bytes:
    """End of file, and what the process made of its input."""
    await client.call("process/closeStdin", processId="p")
    await client.until_closed("p")
    return client.output("p")


async def test_what_becomes_of_a_write() -> None:
    async with serving() as served:
        client = await served.client()
        assert await client.write("p", b"x", "1") == "unknownProcess"
        await client.start("deaf", "sleep", "600")
        assert await client.write("deaf", b"x", "1") == "stdinClosed"
        await client.start("p", "cat", pipeStdin=True)
        assert await client.write("p", b"one ", "1") == "accepted"
        assert await client.write("p", b"", "2") == "accepted"
        assert await client.write("p", b"\0\xff\n", "3") == "accepted"
        assert await finish(client) == b"one \0\xff\n"


async def test_a_write_behind_a_terminate_finds_the_process_terminated() -> None:
    async with serving() as served:
        client = await served.client()
        start = client.post("process/start", client.start_params("p", "cat", pipeStdin=True))
        before = put(client, b"x", "1")
        end = client.post("process/terminate", processId="p")
        behind, again = put(client, b"y", "2"), put(client, b"x", "1")
        await start
        assert await before == await again == {"status": "accepted"}
        assert await end == {"running": True}
        with pytest.raises(Refused) as refused:
            await behind
        assert (refused.value.code, refused.value.message) == FAILED


async def test_the_order_of_the_checks() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("deaf", "sleep", "600")
        for process_id in ("nosuch", "deaf"):
            for chunk in ("!", "QQ", "QQ==\n", "QR=="):
                code, text = await client.refused(
                    "process/write", processId=process_id, chunk=chunk, writeId=""
                )
                assert code == -32602
                assert "chunk" in text
            assert await client.refused(
                "process/write", processId=process_id, chunk="QQ==", writeId=""
            ) == (-32602, "writeId must not be empty")


@pytest.mark.parametrize("members", [{"pipeStdin": True}, {"tty": True}])
async def test_a_write_after_the_end(members: dict[str, bool]) -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("exited", "true", **members)
        await client.until_closed("exited")
        # As with the peer: accepted, and nobody reads it.
        assert await client.write("exited", b"x", "1") == "accepted"
        assert await client.write("exited", b"x", "1") == "accepted"
        await client.start("p", "sleep", "600", **members)
        assert await client.write("p", b"x", "1") == "accepted"
        await client.call("process/terminate", processId="p")
        params = {"processId": "p", "chunk": "", "writeId": "2"}
        assert await client.refused("process/write", params) == FAILED
        await client.until_closed("p")
        assert await client.refused("process/write", params) == FAILED
        # What was accepted stays so.
        assert await client.write("p", b"x", "1") == "accepted"


async def test_a_write_after_the_end_of_file() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "cat; exec sleep 600", pipeStdin=True)
        await client.write("p", b"hello", "1")
        for _ in range(2):
            assert await client.call("process/closeStdin", processId="p") == {}
        await client.until_output("p", b"hello")
        assert await client.write("p", b"more", "2") == "stdinClosed"
        assert await client.write("p", b"hello", "1") == "accepted"
        assert client.output("p") == b"hello"


async def test_a_child_that_closes_its_stdin_harms_nobody() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "exec <&-; echo closed; exec sleep 600", pipeStdin=True)
        await client.until_output("p", b"closed")
        for number in range(3):
            assert await client.write("p", b"x" * 100_000, str(number)) == "accepted"
        assert (await client.read("p"))["exited"] is False


async def test_the_same_id_is_written_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        await client.start("q", "cat", pipeStdin=True)
        for data in (b"a", b"a"):
            assert await client.write("p", data, "1") == "accepted"
        assert caplog.messages == []
        assert await client.write("p", b"other", "1") == "accepted"
        (said,) = caplog.messages
        assert "'1'" in said
        assert "'p'" in said
        assert "other bytes" in said
        # Another process has ids of its own, and another id is another write.
        assert await client.write("q", b"b", "1") == "accepted"
        assert await client.write("p", b"a", "2") == "accepted"
        assert await finish(client) == b"aa"
        await client.until_output("q", b"b")


async def test_long_ids_are_told_apart_and_not_kept() -> None:
    long = "x" * 1_000_000
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        for write_id, data in ((long, b"1"), (long + "y", b"2"), (long, b"3"), ("x" * 129, b"4")):
            assert await client.write("p", data, write_id) == "accepted"
        (child,) = served.server.sessions.children()
        assert child.stdin.ledger._seen is not None
        assert max(map(len, child.stdin.ledger._seen)) < 200
        assert await finish(client) == b"124"


@pytest.mark.fault
async def test_the_last_4096_ids_are_remembered() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell("p", "exec cat > /dev/null", pipeStdin=True)
        for number in range(4097):
            put(client, b"", str(number))
        await client.call("environment/status")
        (child,) = served.server.sessions.children()
        assert not child.stdin.ledger.known("0")
        assert child.stdin.ledger.known("1")
        assert child.stdin.ledger.known("4096")


async def test_the_same_id_twice_while_there_is_no_room(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            await client.shell("p", f"read l < {held.path}; exec cat", pipeStdin=True)
            went_in = await fill(client)
            writes = [put(client, b"<once>", "same") for _ in range(3)]
            writes.append(put(client, b"<other>", "other"))
            await client.call("environment/status")
            assert not any(write.done() for write in writes)
            held.open()
            answers = await asyncio.wait_for(asyncio.gather(*writes), 30)
            assert {answer["status"] for answer in answers} == {"accepted"}
            assert await finish(client) == bytes((went_in + 1) * 64 * 1024) + b"<once><other>"


async def test_the_same_id_after_a_resume() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        assert await client.write("p", b"one ", "1") == "accepted"
        client.abort()
        await client.until_ended()
        again = await served.client(resumeSessionId=client.session)
        assert await again.write("p", b"one ", "1") == "accepted"
        assert await again.write("p", b"two", "2") == "accepted"
        await again.call("process/closeStdin", processId="p")
        assert await again.read_to_close("p") == b"one two"


async def test_a_write_that_was_cut_while_it_waited_can_be_sent_again(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            await client.shell("p", f"read l < {held.path}; exec cat", pipeStdin=True)
            went_in = await fill(client)
            put(client, b"<cut>", "cut")
            side = served.connection(client)
            await spin(lambda: side.calls._unanswered == 2)
            client.abort()
            await client.until_ended()
            again = await served.client(resumeSessionId=client.session)
            # The last of the filling was cut too, and left no trace either.
            write = put(again, b"<cut>", "cut")
            held.open()
            assert await asyncio.wait_for(write, 30) == {"status": "accepted"}
            await again.call("process/closeStdin", processId="p")
            await again.until(lambda: again._event("p", "closed"))
            assert again.output("p") == bytes(went_in * 64 * 1024) + b"<cut>"


async def test_writes_that_wait_are_refused_when_the_process_ends() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600", pipeStdin=True)
        await fill(client)
        write = put(client, b"x", "waits")
        await client.call("environment/status")
        await client.call("process/terminate", processId="p")
        await client.until_closed("p")
        done, _ = await asyncio.wait([write], timeout=30)
        assert done


# --- end of file ----------------------------------------------------------------------------------


async def test_end_of_file_comes_after_what_is_queued(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            await client.shell("p", f"read l < {held.path}; exec wc -c", pipeStdin=True)
            for number in range(10):
                assert await client.write("p", bytes(500_000), str(number)) == "accepted"
            await client.call("process/closeStdin", processId="p")
            held.open()
            await client.until_closed("p")
            assert client.output("p").strip() == b"5000000"


async def test_end_of_file_on_a_terminal() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", tty=True)
        assert await client.write("p", b"line\n", "1") == "accepted"
        await client.until_output("p", b"line\r\nline\r\n")
        assert await client.call("process/closeStdin", processId="p") == {}
        events = await client.until_closed("p")
        assert events[-2]["exitCode"] == 0
        # The key ends one input, not the terminal.
        await client.shell("q", "cat; cat", tty=True)
        await client.call("process/closeStdin", processId="q")
        await client.write("q", b"second\n", "1")
        await client.until_output("q", b"second\r\n")
        await client.call("process/closeStdin", processId="q")
        await client.until_closed("q")


async def test_end_of_file_where_there_is_nothing_to_end() -> None:
    async with serving() as served:
        client = await served.client()
        assert await client.refused("process/closeStdin", processId="p") == (
            -32600,
            "unknown process id p",
        )
        for process_id, members in (("p", {}), ("q", {"pipeStdin": True}), ("r", {"tty": True})):
            await client.start(process_id, "true", **members)
            await client.until_closed(process_id)
            assert await client.call("process/closeStdin", processId=process_id) == {}


# --- a full stdin that says so -------------------------------------------------------------------


async def busy(client: MemoryClient, size: int, write_id: str) -> dict[str, object]:
    data = b64(b"x" * size)
    params = {"processId": "p", "chunk": data, "writeId": write_id, "onFull": "busy"}
    return dict(await client.call("process/write", **params))


async def test_busy_takes_nothing_and_says_how_much_it_would(tmp_path: Path) -> None:
    async with serving() as served:
        client = await served.client()
        with gate(tmp_path / "gate") as held:
            await client.shell("p", f"read x < {held.path}; wc -c", pipeStdin=True)
            # Any number is taken by an empty queue; then only what fits.
            assert await busy(client, QUEUE_BYTES, "1") == {"status": "accepted"}
            full = await busy(client, QUEUE_BYTES, "2")
            assert full["status"] == "busy"
            free = full["freeBytes"]
            assert isinstance(free, int)
            assert 0 < free < QUEUE_BYTES  # what is in the pipe is out of the queue
            assert (await busy(client, free + 1, "2"))["status"] == "busy"
            assert await busy(client, free, "2") == {"status": "accepted"}
            assert await busy(client, 1, "3") == {"status": "busy", "freeBytes": 0}
            # A repetition of what was accepted is no new write.
            assert await busy(client, free, "2") == {"status": "accepted"}
            held.open()
        assert int(await finish(client)) == QUEUE_BYTES + free


async def test_busy_does_not_overtake_who_waits(tmp_path: Path) -> None:
    async with serving() as served:
        client = await served.client()
        with gate(tmp_path / "gate") as held:
            await client.shell("p", f"read x < {held.path}; wc -c", pipeStdin=True)
            wrote = await fill(client)
            assert await busy(client, 1, "late") == {"status": "busy", "freeBytes": 0}
            held.open()
        assert int(await finish(client)) == (wrote + 1) * 64 * 1024


async def test_another_wish_for_a_full_stdin_is_refused() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "cat", pipeStdin=True)
        code, text = await client.refused(
            "process/write", processId="p", chunk="", writeId="1", onFull="drop"
        )
        assert code == -32602
        assert "onFull" in text
