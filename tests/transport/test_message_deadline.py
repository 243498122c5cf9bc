"""A message has a deadline by its size; a peer that trickles one is dropped, a slow one is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from handrail.transport import unix_socket
from handrail.transport.connection_limits import ListenLimits
from handrail.transport.message_deadline import LOWEST_RATE, MessageDeadline
from tests.support.raw_sockets import RawSocket, raw_socket
from tests.transport.transport_kit import Recorder, listening

pytestmark = pytest.mark.fault

QUICK = {"ping_interval": 0.02, "message_seconds": 0.2}
SENTENCE = "a message took longer than 0.2 s and came at less than 16 KiB a second"


async def trickle(peer: RawSocket, server: Recorder) -> None:
    """One byte after the other until the server has had enough."""
    while server.why is None:
        peer.write(b"x")
        await asyncio.sleep(0.005)


def test_the_deadline_grows_with_what_has_come() -> None:
    deadline = MessageDeadline(10.0)
    message = bytearray()
    assert not deadline.passed(message, 100.0, reading=True)
    assert not deadline.passed(message, 110.0, reading=True)
    message += bytes(5 * LOWEST_RATE)
    assert not deadline.passed(message, 115.0, reading=True)
    assert deadline.passed(message, 115.1, reading=True)


def test_time_in_which_this_side_does_not_read_does_not_count() -> None:
    deadline = MessageDeadline(10.0)
    message = bytearray(b"x")
    assert not deadline.passed(message, 0.0, reading=True)
    assert not deadline.passed(message, 50.0, reading=False)
    assert not deadline.passed(message, 55.0, reading=True)
    assert not deadline.passed(message, 75.0, reading=True, stood_still=15.0)
    assert deadline.passed(message, 80.1, reading=True)


def test_another_message_has_another_deadline() -> None:
    deadline = MessageDeadline(10.0)
    for number in range(20):
        assert not deadline.passed(bytearray(b"x"), number * 9.0, reading=True)
        assert not deadline.passed(None, number * 9.0 + 4, reading=True)


async def test_a_peer_that_trickles_a_frame_is_dropped() -> None:
    server = Recorder()
    async with listening(server, **QUICK) as (_, port):
        async with raw_socket(port) as peer:
            # Text, masked, ten MiB announced.
            peer.write(b"\x81\xff" + (10 << 20).to_bytes(8, "big") + b"mask")
            await trickle(peer, server)
            assert server.why == SENTENCE


async def test_a_peer_that_trickles_fragments_is_dropped() -> None:
    server = Recorder()
    async with listening(server, **QUICK) as (_, port):
        async with raw_socket(port) as peer:
            peer.write(b"\x01\x81maskx")
            while server.why is None:
                peer.write(b"\x00\x81maskx")
                await asyncio.sleep(0.005)
            assert server.why == SENTENCE


async def test_many_small_messages_are_no_long_one() -> None:
    server = Recorder()
    async with listening(server, **QUICK) as (_, port):
        async with raw_socket(port) as peer:
            frame = b"\x81\x83maskxyz"
            for number in range(100):  # each cut in two: one is always under way
                peer.write(frame[4:] + frame[:4] if number else frame[:4])
                await asyncio.sleep(0.005)
            peer.write(frame[4:])
            await server.until_messages(100)
            assert server.why is None


async def test_a_line_that_trickles_on_a_unix_socket(tmp_path: Path) -> None:
    server = Recorder()
    listener = await unix_socket.listen(
        str(tmp_path / "s"),
        lambda request: server,
        accept=lambda who: server,
        limits=ListenLimits(message_seconds=0.2),
    )
    peer = RawSocket(*await asyncio.open_unix_connection(str(tmp_path / "s")))
    try:
        peer.write(b"{")
        await server.until_connected()
        await trickle(peer, server)
        assert server.why == SENTENCE
    finally:
        await peer.close()
        listener.abort()
        await listener.wait_closed()
