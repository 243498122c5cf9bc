"""Bytes of tunnels arrive, all of them and in order, whatever other tunnels do meanwhile."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from handrail.network.porter import relay
from handrail.network.porter.kernel_pipe import KernelPipe
from handrail.network.porter.readiness import Readiness
from handrail.network.porter.relay import Relay
from tests.support.eventually import LIMIT, spin

MIB = 1 << 20
PIECE = 32 * 1024


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection, not blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (one, other):
        end.setblocking(False)
    return one, other


class Tunnel:
    """A relay between two connections; ``client`` and ``far`` are what programs hold of them."""

    def __init__(self, readiness: Readiness) -> None:
        self.client, near = connected()
        self.far, there = connected()
        self.outcome: list[str] = []
        self.relay = Relay(readiness, near, there, lambda _, how: self.outcome.append(how))
        self.relay.begin(b"", b"", b"")

    def close(self) -> None:
        self.client.close()
        self.far.close()
        self.relay.stop("closed")


@pytest.fixture(autouse=True)
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelPipe]:
    """The one of this test; pieces are so small that many are full."""
    buffer, pipe = bytearray(PIECE), KernelPipe(PIECE)
    for name, value in (("_buffer", buffer), ("_view", memoryview(buffer)), ("_pipe", pipe)):
        monkeypatch.setattr(relay, name, value)
    monkeypatch.setattr(relay, "HELD", PIECE)
    yield pipe
    pipe.close()


@asynccontextmanager
async def tunnels() -> AsyncIterator[list[Tunnel]]:
    """Four of them on the loop of the test."""
    loop = asyncio.get_running_loop()
    readiness = Readiness(loop)
    made = [Tunnel(readiness) for _ in range(4)]
    try:
        async with asyncio.timeout(LIMIT):
            yield made
    finally:
        for tunnel in made:
            tunnel.close()
        loop.remove_reader(readiness._epoll.fileno())
        readiness._epoll.close()


async def send(sock: socket.socket, period: bytes, count: int) -> None:
    """Send a text again and again, then end this way."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        await loop.sock_sendall(sock, period)
    sock.shutdown(socket.SHUT_WR)


async def digest(sock: socket.socket, size: int = MIB) -> str:
    """Of everything that comes, read in pieces of a size."""
    loop = asyncio.get_running_loop()
    found = hashlib.sha256()
    while data := await loop.sock_recv(sock, size):
        found.update(data)
    return found.hexdigest()


@pytest.mark.parametrize("moves", [True, False])
async def test_tunnels_at_once_keep_their_bytes_apart(pipe: KernelPipe, moves: bool) -> None:
    pipe.is_unusable = not moves
    sending, expected, received = [], [], []
    async with tunnels() as made:
        for number, tunnel in enumerate(made):
            for end, other, size in (
                (tunnel.far, tunnel.client, MIB),
                (tunnel.client, tunnel.far, 5_000),  # reads slowly: the relay has to hold
            ):
                period = os.urandom(MIB + number)
                sending.append(send(end, period, 6))
                expected.append(hashlib.sha256(period * 6).hexdigest())
                received.append(digest(other, size))
        *found, _ = await asyncio.gather(*received, asyncio.gather(*sending))
        assert found == expected
        assert [tunnel.outcome for tunnel in made] == [["closed"]] * 4
    assert (pipe._ends is not None) == moves, "whether bytes went through the pipe"


async def test_a_tunnel_that_breaks_leaves_nothing_to_the_others() -> None:
    loop = asyncio.get_running_loop()
    period = bytes(range(256)) * 4096
    async with tunnels() as (broken, whole, *_):
        sending = loop.create_task(send(broken.far, b"secret" * MIB, 8))
        await loop.sock_recv(broken.client, 1)
        reading = loop.create_task(digest(whole.client))
        other = loop.create_task(send(whole.far, period, 6))
        broken.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        broken.client.close()  # with what it has not read: a reset
        with pytest.raises(ConnectionError):
            await sending
        await other
        assert await reading == hashlib.sha256(period * 6).hexdigest()
        assert broken.outcome == ["reset"]


async def test_no_more_is_held_for_a_client_that_does_not_read() -> None:
    loop = asyncio.get_running_loop()
    async with tunnels() as (tunnel, *_):
        sending = loop.create_task(send(tunnel.far, bytes(MIB), 64))
        await spin(lambda: bool(tunnel.relay.client.held))
        assert len(tunnel.relay.client.held) <= PIECE
        assert await digest(tunnel.client) == hashlib.sha256(bytes(64 * MIB)).hexdigest()
        await sending


@pytest.mark.parametrize("fails_at", [1, 2])
async def test_where_a_kernel_moves_nothing_bytes_are_copied(
    pipe: KernelPipe, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    real, calls = os.splice, 0

    def splice(source: int, target: int, count: int, *, flags: int) -> int:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(errno.EINVAL, "not these")
        return real(source, target, count, flags=flags)

    monkeypatch.setattr(os, "splice", splice)
    period = os.urandom(MIB)
    async with tunnels() as (tunnel, *_):
        sending = asyncio.ensure_future(send(tunnel.far, period, 6))
        assert await digest(tunnel.client) == hashlib.sha256(period * 6).hexdigest()
        await sending
    assert pipe.is_unusable
    assert calls == fails_at
