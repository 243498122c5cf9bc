"""A socket without any manners: bytes of our own making on a plain TCP connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from handrail.transport.frames import masked_frame
from tests.support.eventually import LIMIT

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
).encode()


def header(first: int, size: int, *, masked: bool = True) -> bytes:
    """The head of a frame, with a mask of zeros."""
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 65536:
        head = bytes((first, bit | 126)) + struct.pack(">H", size)
    else:
        head = bytes((first, bit | 127)) + struct.pack(">Q", size)
    return head + bytes(4) if masked else head


def frame(opcode: int, payload: bytes, *, first: int | None = None, masked: bool = True) -> bytes:
    return header(0x80 | opcode if first is None else first, len(payload), masked=masked) + payload


def client_frame(opcode: int, payload: bytes, *, first: int | None = None) -> bytes:
    """A masked frame; ``first`` replaces its first byte."""
    head, body = masked_frame(opcode, payload, os.urandom(4))
    if first is not None:
        head = bytes((first,)) + head[1:]
    return head + body


class RawSocket:
    """One connection: bytes, frames, and messages in frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    # --- bytes ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def send(self, data: bytes) -> None:
        """What the server does not want to read any more is no fault."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await asyncio.wait_for(self.writer.drain(), LIMIT)

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(LIMIT):
            return await self.reader.readexactly(count)

    async def read_head(self) -> bytes:
        async with asyncio.timeout(LIMIT):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def read_all(self) -> bytes:
        """Everything up to the end of the stream, also when that is a reset."""
        data = b""
        async with asyncio.timeout(LIMIT):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    data += piece
        return data

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    # --- frames -----------------------------------------------------------------------------------

    async def upgrade(self, host: str = "x") -> None:
        self.write(UPGRADE.replace(b"Host: x", f"Host: {host}".encode()))
        assert (await self.read_head()).startswith(b"HTTP/1.1 101 ")

    def send_frame(self, opcode: int, payload: bytes) -> None:
        self.write(client_frame(opcode, payload))

    async def read_frame(self) -> tuple[int, bytes]:
        """Opcode and payload of an unmasked, unfragmented frame."""
        first, size = await self.read(2)
        assert first & 0xF0 == 0x80
        assert size < 128, "a server does not mask"
        if size == 126:
            size = int.from_bytes(await self.read(2), "big")
        elif size == 127:
            size = int.from_bytes(await self.read(8), "big")
        return first & 0x0F, await self.read(size)

    async def receive(self) -> tuple[int, bytes]:
        """The next frame that is not a ping."""
        while (got := await self.read_frame())[0] == PING:
            pass
        return got

    async def closed(self) -> tuple[int, str]:
        """The code and reason of the close frame, which must be what comes next."""
        opcode, payload = await self.receive()
        assert opcode == CLOSE
        await self.send(frame(CLOSE, payload[:2]))
        return struct.unpack(">H", payload[:2])[0], payload[2:].decode()

    # --- messages ---------------------------------------------------------------------------------

    async def request(self, method: str, params: Any = None, *, number: int | None = 1) -> None:
        message = {"method": method, "params": params}
        if number is not None:
            message["id"] = number
        await self.send(frame(TEXT, json.dumps(message).encode()))

    async def answer(self) -> dict[str, Any]:
        opcode, payload = await self.receive()
        assert opcode == TEXT
        message: dict[str, Any] = json.loads(payload)
        return message

    async def handshake(self, **members: Any) -> dict[str, Any]:
        await self.request("initialize", {"clientName": "raw", **members})
        result: dict[str, Any] = (await self.answer())["result"]
        await self.request("initialized", number=None)
        return result


@asynccontextmanager
async def raw_socket(where: str | int, *, upgraded: bool = True) -> AsyncIterator[RawSocket]:
    """A connection to a URL or to a port of this machine; an open WebSocket unless told."""
    place = urlsplit(where if isinstance(where, str) else f"ws://127.0.0.1:{where}")
    async with asyncio.timeout(LIMIT):
        opened = await asyncio.open_connection(place.hostname, place.port, limit=1 << 20)
    raw = RawSocket(*opened)
    try:
        if upgraded:
            await raw.upgrade(place.netloc)
        yield raw
    finally:
        await raw.close()
