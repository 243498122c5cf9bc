"""A WebSocket proxy on loopback that writes down every message, and can cut the line.

It runs in a thread of its own, so that the tests stay plain functions.  A cut is abrupt, as when
a cable is pulled: both TCP connections are aborted without a close frame, and the frame that
triggered it may be lost on its way.
"""

from __future__ import annotations

import asyncio
import http
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import Request, Response, Server, ServerConnection, serve

from tests.interop.recording import Frame, Recording, answers

#: How long the proxy may take to start and to stop.
LIMIT = 10.0


@dataclass(frozen=True)
class Cut:
    """When to cut the line, and how badly."""

    #: The method of the request or notification it happens at, and which of them, from 1.
    on: str
    nth: int = 1
    #: At the reply to that request, not at the request.
    reply: bool = False
    #: The frame it happens at never arrives.
    lose: bool = False
    #: So many attempts to connect again are refused.
    refuse: int = 0

    def is_at(self, recording: Recording) -> bool:
        """Whether it happens at the last frame of a recording."""
        last = recording.frames[-1]
        calls = [frame for frame in recording.frames if frame.method == self.on]
        if len(calls) < self.nth:
            return False
        call = calls[self.nth - 1]
        return answers(last, call) if self.reply else last is call


class Recorder:
    """Stands between one client and one server."""

    def __init__(self, upstream: str, cuts: tuple[Cut, ...] = ()) -> None:
        self.recording = Recording()
        #: How often the line was cut, and how often a connection was refused after that.
        self.cut_count = 0
        self.refused_count = 0
        self.url = ""
        self._upstream = upstream
        self._cuts = list(cuts)
        self._refuse = 0
        self._connections = 0
        self._began = time.monotonic()

    @contextmanager
    def listening(self) -> Iterator[Recorder]:
        """Pass on messages while the block runs."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            server = asyncio.run_coroutine_threadsafe(self._listen(), loop).result(LIMIT)
            try:
                yield self
            finally:
                asyncio.run_coroutine_threadsafe(self._stop(server), loop).result(LIMIT)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(LIMIT)
            loop.close()

    async def _listen(self) -> Server:
        server = await serve(
            self._pass_on,
            "127.0.0.1",
            0,
            process_request=self._admit,
            compression=None,
            max_size=None,
            ping_interval=None,
        )
        self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _stop(self, server: Server) -> None:
        server.close()
        await server.wait_closed()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._refuse == 0:
            return None
        self._refuse -= 1
        self.refused_count += 1
        return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "the line is down\n")

    async def _pass_on(self, client: ServerConnection) -> None:
        number = self._connections
        self._connections += 1
        assert client.request is not None
        token = client.request.headers.get("Authorization")
        async with connect(
            self._upstream,
            additional_headers={"Authorization": token} if token else None,
            compression=None,
            max_size=None,
            ping_interval=None,
            proxy=None,
        ) as server:
            directions = (
                asyncio.create_task(self._pump(number, client, server, from_client=True)),
                asyncio.create_task(self._pump(number, server, client, from_client=False)),
            )
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() and task.result() for task in directions):
                client.transport.abort()
                server.transport.abort()
            else:  # one side has left; what it said last still arrives
                await asyncio.gather(client.close(), server.close())
            await asyncio.wait(directions)

    async def _pump(
        self,
        number: int,
        source: ServerConnection | ClientConnection,
        sink: ServerConnection | ClientConnection,
        *,
        from_client: bool,
    ) -> bool:
        """Pass on one direction until its end; true if that is a cut."""
        try:
            async for text in source:
                at = time.monotonic() - self._began
                frame = Frame(number, from_client, json.loads(text), at)
                self.recording.frames.append(frame)
                cut = self._cut()
                if cut is None:
                    await sink.send(text)
                    continue
                if not cut.lose:
                    await sink.send(text)
                self.cut_count += 1
                self._refuse = cut.refuse
                return True
        except websockets.ConnectionClosed:
            pass
        return False

    def _cut(self) -> Cut | None:
        if self._cuts and self._cuts[0].is_at(self.recording):
            return self._cuts.pop(0)
        return None
