"""What the transport tests share: a receiver that remembers, listeners, and scripted servers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from handrail.transport.base import Transport
from handrail.transport.connection_limits import ListenLimits
from handrail.transport.http_head import HttpRequest, HttpResponse
from handrail.transport.websocket import WebSocketListener, listen
from tests.support.eventually import LIMIT
from tests.support.raw_sockets import RawSocket, raw_socket


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
            async with asyncio.timeout(LIMIT):
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
        async with asyncio.timeout(LIMIT):
            await listener.wait_closed()


@asynccontextmanager
async def scripted(play: Callable[[RawSocket], Coroutine[Any, Any, None]]) -> AsyncIterator[int]:
    """A TCP server that plays a script with each client; yields its port, waits for the end."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        peer = RawSocket(reader, writer)
        with contextlib.suppress(ConnectionError):
            await play(peer)
        await peer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*running)


async def http(port: int, request: bytes) -> tuple[int, bytes, bytes]:
    """Status, head and body of one exchange."""
    async with raw_socket(port, upgraded=False) as peer:
        peer.write(request)
        head, _, body = (await peer.read_all()).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head, body


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"fine")


def open_connections(listener: WebSocketListener) -> int:
    """How many connections are open, unfinished handshakes not counted."""
    return len(listener._admission._open)
