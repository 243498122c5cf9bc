"""The memory pair keeps the contract of a real line."""

from __future__ import annotations

import asyncio

import pytest

from handrail.transport.memory import memory_pair
from handrail.transport.message_limits import HIGH_WATER
from tests.transport.transport_kit import Recorder, echo


async def test_messages_arrive_in_order_and_not_at_once() -> None:
    a, b = Recorder(), Recorder(echo)
    left, right = memory_pair(a, b)
    assert (left.kind, right.kind) == ("memory", "memory")
    left.send(b"1")
    left.send(b"2", b"", b"3")
    assert b.messages == []
    await a.until_messages(2)
    assert b.messages == a.messages == [b"1", b"23"]
    left.close(1001, "done\n")
    assert await a.until_lost() == "closed by this side: 1001 done\\n"
    assert await b.until_lost() == "closed by the peer: 1001 done\\n"
    left.send(b"late")
    right.close()
    right.abort()
    await asyncio.sleep(0)
    assert len(b.messages) == 2


async def test_pausing_stops_delivery_between_messages() -> None:
    b = Recorder(lambda self, _: self.transport.pause_reading())
    left, right = memory_pair(Recorder(), b)
    for name in (b"1", b"2", b"3"):
        left.send(name)
    for count in (1, 2, 3):
        await b.until_messages(count)
        await asyncio.sleep(0)
        assert len(b.messages) == count
        right.resume_reading()
    right.abort()


async def test_unread_bytes_press_back() -> None:
    a, b = Recorder(), Recorder()
    left, right = memory_pair(a, b)
    right.pause_reading()
    left.send(b"x" * HIGH_WATER)
    assert a.calls == ["connected"]
    left.send(b"x")
    assert a.calls == ["connected", "pause_writing"]
    assert left.buffered == HIGH_WATER + 1
    right.resume_reading()
    await a.until(lambda: a.calls[-1] == "resume_writing")
    assert left.buffered == 0
    left.abort()
    assert await a.until_lost() == "dropped by this side"
    assert await b.until_lost() == "the connection broke"


async def test_closing_delivers_what_was_sent_before() -> None:
    a, b = Recorder(), Recorder()
    left, _ = memory_pair(a, b)
    left.send(b"last")
    left.close()
    left.send(b"too late")
    await b.until_lost()
    await a.until_lost()
    assert b.messages == [b"last"]


async def test_a_peer_that_does_not_take_cannot_hold_it_open() -> None:
    a, b = Recorder(), Recorder()
    left, right = memory_pair(a, b, close_timeout=0.05)
    right.pause_reading()
    left.send(b"never read")
    left.close()
    await a.until_lost()
    await b.until_lost()
    assert b.messages == []


@pytest.mark.parametrize("both", [True, False])
async def test_closing_from_both_ends(both: bool) -> None:
    a, b = Recorder(), Recorder()
    left, right = memory_pair(a, b)
    right.pause_reading()
    left.send(b"unread")
    left.close()
    if both:
        await asyncio.sleep(0)
    right.close()
    await a.until_lost()
    await b.until_lost()


async def test_a_receiver_that_fails_is_closed_with_1011(caplog: pytest.LogCaptureFixture) -> None:
    def fail(recorder: Recorder, data: str | bytes) -> None:
        raise ValueError("mine")

    a, b = Recorder(), Recorder(fail)
    left, _ = memory_pair(a, b)
    left.send(b"1")
    left.send(b"2")
    assert "1011" in await a.until_lost()
    await b.until_lost()
    assert b.messages == [b"1"]

    assert "ValueError: mine" in caplog.text
