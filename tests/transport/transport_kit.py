"""What the transport tests share: a receiver that remembers, and raw peers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from handrail.transport.base import Transport
from handrail.transport.connection_limits import ListenLimits
from handrail.transport.frames import masked_frame
from handrail.transport.http_head import HttpRequest, HttpResponse
from handrail.transport.websocket import WebSocketListener, listen

#: What the fixture ``run`` gives.
Run = Callable[[Coroutine[Any, Any, None]], None]
WAIT = 10.0
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
).encode()


class Recorder:
    """A receiver that writes down its calls and lets a test wait for them."""

    def __init__(self, on_message: Callable[[Recorder, str | bytes], None] | None = None) -> None:
        self.transport: Transport
        self.calls: list[str] = []
        self.messages: list[str | bytes] = []
        self.why: str | None = None
        self._on_message = on_message
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        self._note("connected")

    def message(self, data: str | bytes | bytearray) -> None:
        # Large text may come as the bytes it is made of.
        self.messages.append(data.decode() if isinstance(data, bytearray) else data)
        self._note("message")
        if self._on_message is not None:
            self._on_message(self, data)

    def pause_writing(self) -> None:
        self._note("pause_writing")

    def resume_writing(self) -> None:
        self._note("resume_writing")

    def disconnected(self, why: str) -> None:
        self.why = why
        self._note("disconnected")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        for waiter in list(self._waiters):
            if waiter[0]() and not waiter[1].done():
                waiter[1].set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        if condition():
            return
        waiter = (condition, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(WAIT):
                await waiter[1]
        finally:
            self._waiters.remove(waiter)

    async def until_messages(self, count: int) -> None:
        await self.until(lambda: len(self.messages) >= count)

    async def until_connected(self) -> None:
        await self.until(lambda: "connected" in self.calls)

    async def until_lost(self) -> str:
        await self.until(lambda: self.why is not None)
        # Let everything that is scheduled happen: a second call would show up.
        for _ in range(3):
            await asyncio.sleep(0)
        assert self.calls.count("disconnected") == 1
        assert self.calls[-1] == "disconnected"
        assert self.why is not None
        return self.why


def echo(recorder: Recorder, data: str | bytes) -> None:
    recorder.transport.send(data.encode() if isinstance(data, str) else data)


@asynccontextmanager
async def listening(
    route: Callable[[HttpRequest], Any] | Recorder, **limits: Any
) -> AsyncIterator[tuple[WebSocketListener, int]]:
    """A listener on a free port, gone without a trace afterwards."""
    if isinstance(route, Recorder):
        recorder = route
        route = lambda request: recorder  # noqa: E731
    limits = {"close_timeout": 0.2} | limits
    listener = await listen("127.0.0.1", 0, route, limits=ListenLimits(**limits))
    try:
        assert isinstance(listener.sockname, tuple)
        yield listener, listener.sockname[1]
    finally:
        listener.abort()
        async with asyncio.timeout(WAIT):
            await listener.wait_closed()


class RawPeer:
    """A socket without any manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, opcode: int, payload: bytes) -> None:
        self.write(client_frame(opcode, payload))

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(WAIT):
            return await self.reader.readexactly(count)

    async def read_head(self) -> bytes:
        async with asyncio.timeout(WAIT):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def read_all(self) -> bytes:
        """Until the end, also when that is a reset."""
        data = b""
        async with asyncio.timeout(WAIT):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    data += piece
        return data

    async def read_frame(self) -> tuple[int, bytes]:
        """Opcode and payload of an unmasked, unfragmented frame."""
        first, length = await self.read(2)
        assert first & 0xF0 == 0x80
        if length == 126:
            length = int.from_bytes(await self.read(2), "big")
        elif length == 127:
            length = int.from_bytes(await self.read(8), "big")
        return first & 0x0F, await self.read(length)

    async def upgrade(self) -> None:
        self.write(UPGRADE)
        assert (await self.read_head()).startswith(b"HTTP/1.1 101 ")

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def raw_peer(port: int, *, upgraded: bool = False) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    peer = RawPeer(reader, writer)
    try:
        if upgraded:
            await peer.upgrade()
        yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def scripted(play: Callable[[RawPeer], Coroutine[Any, Any, None]]) -> AsyncIterator[int]:
    """A TCP server that plays a script with each client; yields its port, waits for the end."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        peer = RawPeer(reader, writer)
        with contextlib.suppress(ConnectionError):
            await play(peer)
        await peer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        async with asyncio.timeout(WAIT):
            await asyncio.gather(*running)


async def http(port: int, request: bytes) -> tuple[int, bytes, bytes]:
    """Status, head and body of one exchange."""
    async with raw_peer(port) as peer:
        peer.write(request)
        head, _, body = (await peer.read_all()).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head, body


def client_frame(opcode: int, payload: bytes, *, first: int | None = None) -> bytes:
    """A masked frame; ``first`` replaces its first byte."""
    head, body = masked_frame(opcode, payload, os.urandom(4))
    if first is not None:
        head = bytes((first,)) + head[1:]
    return head + body


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"fine")
