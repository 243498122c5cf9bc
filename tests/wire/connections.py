"""Connections to a server under test: they send what a case says and record what comes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import websockets

from tests.wire.recording import Recording

#: Longest line of a server on stdio.
LINE_LIMIT = 1 << 28
OPEN_LIMIT = 10.0


class ClosedEarly(ConnectionError):
    """The server hung up while the case was waiting for something."""


class Connection(ABC):
    """What both kinds have in common: the recording, and waiting for something in it."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.changed = asyncio.Condition()
        self.reader: asyncio.Task[None] | None = None

    async def record(self, raw: str | bytes) -> None:
        """Add one message; what is no JSON object is kept as a sign of that."""
        try:
            message = json.loads(raw)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            message = {"$unparsed": repr(raw)[:200]}
        async with self.changed:
            self.recording.messages.append(message)
            self.recording.times.append(time.monotonic())
            self.changed.notify_all()

    async def record_end(self) -> None:
        """Nothing more will come."""
        async with self.changed:
            self.recording.closed = True
            self.changed.notify_all()

    async def wait_for(self, selector: str, timeout: float) -> None:
        """Wait until a selector finds something.

        Raises AssertionError when the time is over, ClosedEarly when nothing can come any more.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.wait_without_limit(selector)
        except TimeoutError:
            last = json.dumps(self.recording.messages[-4:])[:600]
            raise AssertionError(f"timeout awaiting {selector}; log={last}") from None

    async def wait_without_limit(self, selector: str) -> None:
        """Look again after each message."""
        async with self.changed:
            while self.recording.find(selector) is None:
                if self.recording.closed and selector != "eof":
                    last = json.dumps(self.recording.messages[-1:])[:300]
                    raise ClosedEarly(f"connection closed while awaiting {selector}; last={last}")
                await self.changed.wait()

    async def stop_reading(self) -> None:
        """End the task that records."""
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)

    @abstractmethod
    async def send(self, raw: str | bytes) -> None:
        """Send one message as it is."""

    @abstractmethod
    async def close(self) -> None:
        """Take leave as a well-behaved client does."""

    @abstractmethod
    async def abort(self) -> None:
        """Vanish."""

    @abstractmethod
    async def end(self) -> None:
        """Close if still open, and leave nothing running; the case is over."""


class WebSocketConnection(Connection):
    """A client of a listening server."""

    #: How long the server may take to answer our goodbye.
    CLOSE_LIMIT = 2.0

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str] | None = None) -> WebSocketConnection:
        """Connect; a refused upgrade is part of the recording, not an error."""
        self = cls()
        self.socket: websockets.ClientConnection | None = None
        try:
            self.socket = await websockets.connect(
                url,
                max_size=None,
                additional_headers=headers,
                proxy=None,
                ping_interval=None,
                open_timeout=OPEN_LIMIT,
            )
        except websockets.InvalidStatus as e:
            body = (e.response.body or b"").decode("utf-8", "replace")
            self.recording.rejected = (e.response.status_code, body)
            self.recording.closed = True
        else:
            self.reader = asyncio.create_task(self.read(self.socket))
        return self

    async def read(self, socket: websockets.ClientConnection) -> None:
        """Record until the connection is gone."""
        try:
            async for raw in socket:
                await self.record(raw)
        except websockets.ConnectionClosed:
            pass
        await self.record_end()

    def live(self) -> websockets.ClientConnection:
        """The socket, of a connection that came to be."""
        if self.socket is None:
            raise ConnectionError(f"the connection was refused: {self.recording.rejected}")
        return self.socket

    async def send(self, raw: str | bytes) -> None:
        await self.live().send(raw)

    async def close(self) -> None:
        await self.live().close()

    async def abort(self) -> None:
        self.live().transport.abort()

    async def end(self) -> None:
        if self.socket is not None:
            try:
                await asyncio.wait_for(self.socket.close(), self.CLOSE_LIMIT)
            except TimeoutError:
                self.socket.transport.abort()
                await self.socket.wait_closed()
        await self.stop_reading()


class StdioConnection(Connection):
    """A server that is our child and speaks on its stdin and stdout."""

    #: How long it may take to end when its stdin does.
    EXIT_LIMIT = 5.0

    @classmethod
    async def open(cls, command: Sequence[str], env: Mapping[str, str]) -> StdioConnection:
        """Start the server."""
        self = cls()
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            limit=LINE_LIMIT,
            env=env,
        )
        self.reader = asyncio.create_task(self.read())
        return self

    async def read(self) -> None:
        """Record until its stdout ends."""
        while line := await self.process.stdout.readline():
            await self.record(line)
        await self.record_end()

    async def send(self, raw: str | bytes) -> None:
        data = raw.encode() if isinstance(raw, str) else raw
        self.process.stdin.write(data + b"\n")
        await self.process.stdin.drain()

    async def close(self) -> None:
        self.process.stdin.close()

    async def abort(self) -> None:
        self.process.kill()

    async def end(self) -> None:
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), self.EXIT_LIMIT)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        await self.stop_reading()
