"""A thousand tunnels at once, and clients among them that do not read, hold up no other."""

from __future__ import annotations

import resource
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from handrail.network.config import ManagedNetwork
from tests.network.porters import LIMIT, connect, far_side, porter, read_until
from tests.support.processes import kilobytes

TUNNELS = 1000
#: Clients that read nothing, though there is much to read.
DEAF = 50
#: Of the porter for one tunnel.
MOST_BYTES = 16 * 1024


@pytest.fixture(autouse=True)
def _descriptors() -> Iterator[None]:
    """Both ends of all tunnels are this process's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * TUNNELS:
        pytest.skip(f"needs {3 * TUNNELS} descriptors, and {hard} is the limit")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * TUNNELS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def opened(
    stack: ExitStack, address: tuple[str, int], listener: socket.socket, port: int
) -> tuple[list[socket.socket], dict[int, socket.socket]]:
    """All clients, connected at once; and the origin's ends by the number that came by each."""
    clients = [stack.enter_context(socket.socket()) for _ in range(TUNNELS)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(address)
    for client in clients:
        client.settimeout(LIMIT)
        client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
    accepted = [stack.enter_context(listener.accept()[0]) for _ in clients]
    for number, client in enumerate(clients):
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        client.sendall(b"%04d" % number)
    ends = {}
    for end in accepted:
        end.settimeout(LIMIT)
        ends[int(end.recv(4, socket.MSG_WAITALL))] = end
    assert len(ends) == TUNNELS
    return clients, ends


def fill(ends: list[socket.socket]) -> None:
    """Send until none of them takes anything any more."""
    with selectors.DefaultSelector() as writable:
        for end in ends:
            end.setblocking(False)
            writable.register(end, selectors.EVENT_WRITE)
        while events := writable.select(0.2):
            for key, _ in events:
                assert isinstance(key.fileobj, socket.socket)
                try:
                    key.fileobj.send(bytes(262_144))
                except BlockingIOError:
                    pass


def ping(one: socket.socket, other: socket.socket) -> None:
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"ping")
        assert receiver.recv(4, socket.MSG_WAITALL) == b"ping"


def test_a_thousand_tunnels_and_deaf_clients() -> None:
    with porter() as running, far_side() as (listener, port), ExitStack() as stack:
        allowed = ManagedNetwork(domains={f"127.0.0.1:{port}": "allow"})
        address = running.add("many", allowed)
        with connect(address) as first:
            first.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            read_until(first, b"\r\n\r\n")
            before = kilobytes(running.process.pid, "VmRSS")
            listener.accept()[0].close()
        clients, ends = opened(stack, address, listener, port)
        grown = (kilobytes(running.process.pid, "VmRSS") - before) * 1024
        assert grown < TUNNELS * MOST_BYTES
        fill([ends[number] for number in range(DEAF)])
        for number in range(DEAF, TUNNELS):
            ping(clients[number], ends[number])
        # What is held for those that do not read is bounded.
        grown = (kilobytes(running.process.pid, "VmRSS") - before) * 1024
        assert grown < TUNNELS * MOST_BYTES + DEAF * 512 * 1024
        # Another command is served as ever.
        other = running.add("other", allowed)
        with connect(other) as client:
            client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            with listener.accept()[0] as origin:
                read_until(client, b"\r\n\r\n")
                ping(client, origin)
