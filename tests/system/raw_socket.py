"""A WebSocket without any manners: bytes of our own making on a plain TCP connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.server.process_kit import WAIT

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_UPGRADE = (
    "GET / HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


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


class RawSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """What the server does not want to read any more is no fault."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await asyncio.wait_for(self.writer.drain(), WAIT)

    async def request(self, method: str, params: Any = None, *, number: int | None = 1) -> None:
        message = {"method": method, "params": params}
        if number is not None:
            message["id"] = number
        await self.send(frame(TEXT, json.dumps(message).encode()))

    async def handshake(self, **members: Any) -> dict[str, Any]:
        await self.request("initialize", {"clientName": "raw", **members})
        result: dict[str, Any] = (await self.answer())["result"]
        await self.request("initialized", number=None)
        return result

    async def receive(self) -> tuple[int, bytes]:
        """The next frame that is not a ping."""
        async with asyncio.timeout(WAIT):
            while True:
                first, size = await self.reader.readexactly(2)
                assert size < 128, "a server does not mask"
                if size == 126:
                    (size,) = struct.unpack(">H", await self.reader.readexactly(2))
                elif size == 127:
                    (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
                payload = await self.reader.readexactly(size)
                if first & 15 != PING:
                    return first & 15, payload

    async def answer(self) -> dict[str, Any]:
        opcode, payload = await self.receive()
        assert opcode == TEXT
        message: dict[str, Any] = json.loads(payload)
        return message

    async def closed(self) -> tuple[int, str]:
        """The code and reason of the close frame, which must be what comes next."""
        opcode, payload = await self.receive()
        assert opcode == CLOSE
        await self.send(frame(CLOSE, payload[:2]))
        return struct.unpack(">H", payload[:2])[0], payload[2:].decode()

    async def end(self) -> bytes:
        """Everything up to the end of the stream, also when that is a reset."""
        data = b""
        async with asyncio.timeout(WAIT):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    data += piece
        return data


@asynccontextmanager
async def raw_socket(url: str) -> AsyncIterator[RawSocket]:
    """An open WebSocket."""
    place = urlsplit(url)
    async with asyncio.timeout(WAIT):
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 25)
    try:
        writer.write(_UPGRADE.format(place.netloc).encode())
        async with asyncio.timeout(WAIT):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        yield RawSocket(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
