"""``process/read`` and the notifications: numbers, pages, waits, ends, and what was dropped."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import MemoryClient, chunks_of
from tests.support.gates import gate
from tests.support.servers import serving

LONG = 3_600_000
U64 = 2**64 - 1


def seqs(page: dict[str, Any]) -> list[int]:
    return [chunk["seq"] for chunk in page["chunks"]]


async def four_chunks(client: MemoryClient, path: str, opened: Any) -> None:
    """A process with chunks 1 to 4 of four bytes, exit 5 and close 6."""
    await client.shell("p", f"for i in 1 2 3 4; do read l < {path}; printf abc$i; done; exit 9")
    for number in range(1, 5):
        opened()
        await client.until_output("p", b"abc%d" % number)
    await client.until_closed("p")


async def test_pages_by_size(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            await four_chunks(client, held.path, held.open)
            for members, numbers, following in (
                ({}, [1, 2, 3, 4], 7),
                ({"maxBytes": None, "afterSeq": None, "waitMs": None}, [1, 2, 3, 4], 7),
                ({"maxBytes": 0}, [1], 2),
                ({"maxBytes": 1}, [1], 2),
                ({"maxBytes": 4}, [1], 2),
                ({"maxBytes": 7}, [1], 2),
                ({"maxBytes": 8}, [1, 2], 3),
                ({"maxBytes": 9}, [1, 2], 3),
                ({"maxBytes": 100}, [1, 2, 3, 4], 5),
                ({"maxBytes": U64}, [1, 2, 3, 4], 5),
                ({"afterSeq": 2}, [3, 4], 7),
                ({"afterSeq": 2, "maxBytes": 1}, [3], 4),
                ({"afterSeq": 4}, [], 7),
                ({"afterSeq": 4, "maxBytes": 1}, [], 7),
                ({"afterSeq": 6, "waitMs": LONG}, [], 7),
                ({"afterSeq": U64, "waitMs": U64}, [], 7),
            ):
                page = await client.read("p", **members)
                assert seqs(page) == numbers, members
                assert page["nextSeq"] == following, members
                assert chunks_of(page) == b"".join(b"abc%d" % number for number in numbers)
                assert page["exited"] is True
                assert page["closed"] is True
                assert page["exitCode"] == 9
                assert page["failure"] is None
                assert page["sandboxDenied"] is False
                assert "omitted" not in page


async def test_numbers_out_of_range() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "true")
        for field in ("afterSeq", "maxBytes", "waitMs"):
            for value in (-1, 1.0, 1.5, "1", U64 + 1, 10**100, True, [], {}):
                code, text = await client.refused("process/read", {"processId": "p", field: value})
                assert code == -32602, (field, value)
                assert field in text
        code, text = await client.refused("process/terminate", processId="p", graceMs=U64 + 1)
        assert code == -32602
        assert "graceMs" in text


async def test_an_unknown_process() -> None:
    async with serving() as served:
        client = await served.client()
        for process_id in ("nosuch", "", "ü"):
            answer = await client.refused("process/read", processId=process_id)
            assert answer == (-32600, f"unknown process id {process_id}")


async def test_a_read_without_a_wait_returns_at_once() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "sleep", "600")
        page = await client.read("p")
        assert page["chunks"] == []
        assert page["nextSeq"] == 1
        assert page["exited"] is False
        assert page["exitCode"] is None
        assert page["closed"] is False
        assert page["exit"] is None
        assert page["usage"] is None
        # And one whose time is up says the same.
        assert await client.read("p", waitMs=1) == page


async def test_a_long_poll_returns_for_each_kind_of_news(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held, gate(tmp_path / "second") as second:
        async with serving() as served:
            client = await served.client()
            await client.shell(
                "p", f"(read l < {second.path}; echo late) & read l < {held.path}; echo out"
            )
            # Output.
            poll = client.post("process/read", processId="p", waitMs=LONG)
            held.open()
            page = await asyncio.wait_for(poll, 30)
            assert chunks_of(page) == b"out\n"
            # The exit, which the reader has not seen; the pipe is still held.
            after = seqs(page)[-1]
            page = await client.read("p", afterSeq=after, waitMs=LONG)
            assert (page["exited"], page["closed"], page["chunks"]) == (True, False, [])
            after = page["nextSeq"] - 1
            # Output of a descendant, after the exit.
            poll = client.post("process/read", processId="p", afterSeq=after, waitMs=LONG)
            second.open()
            page = await asyncio.wait_for(poll, 30)
            assert chunks_of(page) == b"late\n"
            # The close, which ends every wait.
            page = await client.read("p", afterSeq=U64, waitMs=LONG)
            assert page["closed"] is True
            events = await client.until_closed("p")
            assert [e["kind"] for e in events] == ["output", "exited", "output", "closed"]


async def test_all_that_poll_are_answered(tmp_path: Path) -> None:
    with gate(tmp_path / "gate") as held:
        async with serving() as served:
            client = await served.client()
            await client.shell("p", f"read l < {held.path}; echo out; exec sleep 600")
            polls = [client.post("process/read", processId="p", waitMs=LONG) for _ in range(20)]
            await client.call("environment/status")
            held.open()
            pages = await asyncio.wait_for(asyncio.gather(*polls), 30)
            assert {chunks_of(page) for page in pages} == {b"out\n"}


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tty", [False, True])
async def test_how_a_process_ended(tty: bool) -> None:
    async with serving() as served:
        client = await served.client(resumeSecret=None)

        async def end_of(process_id: str) -> dict[str, Any]:
            await client.until_closed(process_id)
            page = await client.read(process_id)
            exited = client._event(process_id, "exited")
            assert exited is not None
            assert exited["exit"] == page["exit"]
            assert exited["usage"] == page["usage"]
            assert exited["exitCode"] == page["exitCode"] == page["exit"]["code"]
            assert set(page["usage"]) == {"wallMs", "userMs", "systemMs", "maxRssBytes"}
            assert all(type(n) is int and n >= 0 for n in page["usage"].values())
            assert page["usage"]["maxRssBytes"] > 0
            return page["exit"]  # type: ignore[no-any-return]

        def shape(kind: str, code: int, signal: str | None = None) -> dict[str, Any]:
            return {"kind": kind, "code": code, "signal": signal, "coreDumped": False}

        for code in (0, 3, 255):
            await client.shell(f"exit {code}", f"exit {code}", tty=tty)
            assert await end_of(f"exit {code}") == shape("exited", code)
        await client.start("killed", "sleep", "600", tty=tty)
        await client.call("process/signal", processId="killed", signal="term")
        assert await end_of("killed") == shape("signaled", 143, "SIGTERM")
        await client.shell("itself", "kill -9 $$", tty=tty)
        assert await end_of("itself") == shape("signaled", 137, "SIGKILL")
        await client.start("ended", "sleep", "600", tty=tty)
        await client.call("process/terminate", processId="ended")
        assert await end_of("ended") == shape("terminated", 137, "SIGKILL")


async def test_the_exit_has_our_members_only_for_those_who_ask() -> None:
    plain = {"kind", "processId", "seq", "exitCode", "sandboxDenied"}
    async with serving() as served:
        for members, extra in (
            ({}, set()),
            ({"resumeSecret": None}, {"exit", "usage"}),
            ({"detachTtlMs": 1000}, {"exit", "usage"}),
        ):
            client = await served.client(**members)
            await client.start("p", "true")
            assert set(await client.until_exited("p")) == plain | extra
            await client.until_closed("p")
            # Reads have them for everybody.
            assert {"exit", "usage"} <= set(await client.read("p"))


# --- retention ------------------------------------------------------------------------------------


async def test_three_megabytes_are_notified_and_the_last_one_is_kept() -> None:
    total = 3_000_000
    expected = b"".join(b"%07d\n" % number for number in range(total // 8))
    async with serving() as served:
        client = await served.client()
        await client.start("p", "seq", "-f", "%07.0f", "0", str(total // 8 - 1))
        events = await client.until_closed("p")
        assert client.output("p") == expected
        sizes = {
            e["seq"]: len(base64.b64decode(e["chunk"])) for e in events if e["kind"] == "output"
        }
        page = await client.read("p")
        kept = chunks_of(page)
        assert kept == expected[-len(kept) :]
        assert 1024 * 1024 - max(sizes.values()) <= len(kept) <= 1024 * 1024
        first = seqs(page)[0]
        # What is said to be missing is exactly what is missing, from wherever one asks.
        for after in (0, 1, 2, first // 2, first - 2, first - 1, first, first + 3):
            page = await client.read("p", afterSeq=after)
            gone = [size for seq, size in sizes.items() if after < seq < first]
            if gone:
                assert page["omitted"] == {"bytes": sum(gone), "chunks": len(gone)}
            else:
                assert "omitted" not in page


async def test_a_second_stream_does_not_blur_the_count() -> None:
    async with serving() as served:
        client = await served.client()
        await client.shell(
            "p",
            "head -c 700000 /dev/zero & head -c 900000 /dev/zero >&2 & wait; echo end",
        )
        events = await client.until_closed("p")
        sizes = {
            e["seq"]: len(base64.b64decode(e["chunk"])) for e in events if e["kind"] == "output"
        }
        assert sum(sizes.values()) == 1_600_004
        page = await client.read("p")
        first = seqs(page)[0]
        gone = [size for seq, size in sizes.items() if seq < first]
        assert page["omitted"] == {"bytes": sum(gone), "chunks": len(gone)}
        assert len(chunks_of(page)) == 1_600_004 - sum(gone)


async def test_output_of_a_detached_session_is_kept_and_counted() -> None:
    async with serving() as served:
        client = await served.client()
        await client.start("p", "seq", "-f", "%07.0f", "0", "374999")
        client.abort()
        await client.until_ended()
        again = await served.client(resumeSessionId=client.session)
        page = await again.read("p", waitMs=LONG)
        data, after, lost = b"", 0, 0
        while True:
            data += chunks_of(page)
            lost += page.get("omitted", {"bytes": 0})["bytes"]
            after = page["nextSeq"] - 1
            if page["closed"]:
                break
            page = await again.read("p", afterSeq=after, waitMs=LONG)
        assert lost + len(data) == 3_000_000
        expected = b"".join(b"%07d\n" % number for number in range(375_000))
        assert expected.endswith(data[-1024:])
