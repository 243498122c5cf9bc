"""Knowing what the other side has got."""

from __future__ import annotations

import asyncio
from pathlib import Path

from handrail.transport import unix_socket
from handrail.transport.frames import PING, PONG, TEXT
from handrail.transport.memory import memory_pair
from handrail.transport.websocket import connect
from tests.support.eventually import LIMIT
from tests.support.raw_sockets import client_frame, raw_socket
from tests.transport.transport_kit import Recorder, listening, ok


class Marks:
    """What was confirmed, in order."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def at(self, number: int) -> None:
        self.seen.append(number)

    async def until_count(self, count: int) -> None:
        async with asyncio.timeout(LIMIT):
            while len(self.seen) < count:  # noqa: ASYNC110 (as below)
                await asyncio.sleep(0)

    async def until(self, *numbers: int) -> None:
        async with asyncio.timeout(LIMIT):
            while self.seen != list(numbers):  # noqa: ASYNC110 (no event for a plain callback)
                await asyncio.sleep(0)


async def test_ours_confirm_by_themselves() -> None:
    server, client, marks = Recorder(), Recorder(), Marks()
    async with listening(server) as (_, port):
        line = await connect(f"ws://127.0.0.1:{port}/", client)
        for number in (1, 2, 3):
            line.send(b"x")
            line.confirm(lambda number=number: marks.at(number))
            server.transport.confirm(lambda number=number: marks.at(10 * number))
        await marks.until_count(6)
        assert len(server.messages) == 3
        assert [m for m in marks.seen if m < 10] == [1, 2, 3]
        assert [m for m in marks.seen if m >= 10] == [10, 20, 30]
        line.abort()
        await server.until_lost()
        server.transport.confirm(lambda: marks.at(99))
        assert len(marks.seen) == 6


async def test_one_pong_stands_for_those_before_it() -> None:
    server, marks = Recorder(), Marks()
    async with listening(server) as (_, port), raw_socket(port) as peer:
        await server.until_connected()
        pings = []
        for number in (1, 2, 3):
            server.transport.send(b"m")
            server.transport.confirm(lambda number=number: marks.at(number))
            assert await peer.read_frame() == (TEXT, b"m")
            opcode, payload = await peer.read_frame()
            assert opcode == PING
            pings.append(payload)
        # A pong nobody asked for, an empty one, and one that is no number of ours.
        for payload in (b"", b"what", b"-1"):
            peer.send_frame(PONG, payload)
        peer.send_frame(TEXT, b"first")
        await server.until_messages(1)
        assert marks.seen == []
        peer.send_frame(PONG, pings[1])
        await marks.until(1, 2)
        peer.send_frame(PONG, pings[2])
        await marks.until(1, 2, 3)


async def test_a_silent_peer_is_asked_again() -> None:
    server, marks = Recorder(), Marks()
    async with (
        listening(server, ping_interval=0.05) as (_, port),
        raw_socket(port) as peer,
    ):
        await server.until_connected()
        server.transport.confirm(lambda: marks.at(1))
        first = await peer.read_frame()
        again = await peer.read_frame()
        while again == (PING, b""):  # the clock's own, sent before
            again = await peer.read_frame()
        assert again == first
        peer.write(client_frame(PONG, again[1]))
        await marks.until(1)


async def test_a_message_in_pieces_is_not_overtaken() -> None:
    server, client, marks = Recorder(), Recorder(), Marks()
    async with listening(server) as (_, port):
        line = await connect(f"ws://127.0.0.1:{port}/", client)
        await server.until_connected()
        server.transport.begin()
        server.transport.piece(b"long ")
        server.transport.send(b"said meanwhile")
        server.transport.confirm(lambda: marks.at(len(client.messages)))
        line.send(b"there and back")
        await server.until_messages(1)
        assert marks.seen == []
        server.transport.piece(b"message", last=True)
        await marks.until(2)
        line.abort()
        await server.until_lost()


async def test_lines_are_confirmed_when_the_kernel_has_them(tmp_path: Path) -> None:
    server, client, marks = Recorder(), Recorder(), Marks()
    path = str(tmp_path / "s")
    listener = await unix_socket.listen(path, ok, accept=lambda who: server)
    try:
        line = await unix_socket.connect(path, client)
        line.send(b"hello")
        await server.until_messages(1)
        line.pause_reading()
        size = 4_000_000
        server.transport.send(b"x" * size)
        server.transport.confirm(lambda: marks.at(server.transport.buffered))
        assert server.transport.buffered > 0
        line.resume_reading()
        await client.until_messages(1)
        await marks.until(0)
        line.abort()
        await server.until_lost()
    finally:
        listener.abort()
        async with asyncio.timeout(LIMIT):
            await listener.wait_closed()


async def test_memory_confirms_what_was_taken() -> None:
    a, b, marks = Recorder(), Recorder(), Marks()
    one, other = memory_pair(a, b)
    other.pause_reading()
    one.send(b"m")
    one.confirm(lambda: marks.at(len(b.messages)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert marks.seen == []
    other.resume_reading()
    await marks.until(1)
    one.confirm(lambda: marks.at(2))
    one.abort()
    await b.until_lost()
    one.confirm(lambda: marks.at(3))
    assert marks.seen == [1]
