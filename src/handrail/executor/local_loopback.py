"""Connections to what processes of this machine listen on.  Imported with the first."""

from __future__ import annotations

import asyncio
import socket

from handrail.executor.base import LoopbackStream

_PIECE = 256 * 1024


class SocketStream(LoopbackStream):
    """A socket, made in the network of the process."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._sock, _PIECE)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    async def end(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        self._sock.close()
