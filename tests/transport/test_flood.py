"""Many half requests at a time, and honest clients among them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading

from handrail.transport.base import Transport
from handrail.transport.http_head import HttpRequest
from handrail.transport.websocket import connect
from handrail.transport.websocket_handshake import HandshakeError
from tests.support.eventually import LIMIT
from tests.transport.transport_kit import Recorder, echo, listening


def half_route(request: HttpRequest) -> Recorder:
    return Recorder(echo)


async def test_honest_clients_get_in_during_a_flood_of_half_requests() -> None:
    """Those that were refused take no place, however long their clients hold on to them."""

    def flood(port: int, over: threading.Event, begun: threading.Event) -> None:
        held: list[socket.socket] = []
        for count in itertools.count():
            if over.is_set():
                break
            if len(held) >= 300:
                held.pop(0).close()
            sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
            held.append(sock)
            with contextlib.suppress(OSError):
                sock.sendall(b"GET / HT")
            if count == 600:
                begun.set()
        for sock in held:
            sock.close()

    async def honest(url: str) -> Transport:
        """Connect; the flood may have all places for a moment, and then a client tries again."""
        for _ in range(4):
            with contextlib.suppress(HandshakeError):
                return await connect(url, Recorder())
        return await connect(url, Recorder())

    over, begun = threading.Event(), threading.Event()
    async with listening(half_route, max_handshakes=16) as (_, port):
        flooding = asyncio.create_task(asyncio.to_thread(flood, port, over, begun))
        try:
            assert await asyncio.to_thread(begun.wait, LIMIT)
            for _ in range(30):
                line = await honest(f"ws://127.0.0.1:{port}")
                line.abort()
        finally:
            over.set()
            await flooding
