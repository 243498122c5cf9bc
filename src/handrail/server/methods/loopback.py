"""``loopback/*``: connections of a client to what its processes listen on.

Imported with the first request for one.  A piece is read from the process when the client asks for
it, so a client that does not read holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from handrail.errors import RpcError
from handrail.network.loopback_reach import LoopbackReach
from handrail.protocol import codec
from handrail.protocol.envelope import INVALID_PARAMS, INVALID_REQUEST
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.loopback import (
    LARGEST,
    ConnectionParams,
    ConnectParams,
    ReadResult,
    WriteParams,
)
from handrail.protocol.methods import Lane
from handrail.server.methods import process_lookup

if TYPE_CHECKING:
    from handrail.server.connection import Connection

#: Connections of one client.
MOST = 1024
#: Of connections that are being closed; the loop itself does not hold its tasks.
_closing: set[asyncio.Task[None]] = set()


class _Open:
    """One connection: requests of a kind are carried out one after the other."""

    __slots__ = ("reading", "sock", "writing")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reading, self.writing = asyncio.Lock(), asyncio.Lock()


class ConnectionLoopback:
    """The open connections of one client; they end with its line."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._open: dict[str, _Open | None] = {}
        self._reach = LoopbackReach()
        self._closed = False

    async def connect(self, params: ConnectParams) -> Nothing:
        """Connect; raises RpcError."""
        key, session = params.connection_id, self._conn.session
        assert session is not None  # noqa: S101 (checked with the handshake)
        if not 1 <= len(key) <= process_lookup.LONGEST_ID:
            raise RpcError(
                INVALID_PARAMS, f"`connectionId` has 1 to {process_lookup.LONGEST_ID} characters"
            )
        if key in self._open:
            raise RpcError(INVALID_REQUEST, f"connection {key} already exists")
        if len(self._open) >= MOST:
            raise RpcError(INVALID_REQUEST, f"{MOST} connections are open; close one first")
        self._open[key] = None
        sock = None
        try:
            networks = session.loopbacks.named(params.loopback)
            sock = await self._reach.connect(networks, params.port)
        except OSError as error:
            raise RpcError(INVALID_REQUEST, str(error), {"errno": error.errno or 0}) from None
        finally:
            if sock is None or self._closed:
                self._open.pop(key, None)  # ``end`` and ``close`` forget one that is being made
        if self._closed:
            sock.close()
            raise RpcError(INVALID_REQUEST, "the client is gone")
        self._open[key] = _Open(sock)
        return NOTHING

    async def read(self, params: ConnectionParams) -> ReadResult:
        """Wait for the next piece; raises RpcError when the connection is broken."""
        found = self._find(params.connection_id)
        async with found.reading:
            await self._conn.writable()
            try:
                data = await self._conn.server.loop.sock_recv(found.sock, LARGEST)
            except OSError as error:
                raise _broken(error) from None
        return ReadResult(chunk=codec.encode_base64(data).decode(), end=not data)

    async def write(self, params: WriteParams) -> Nothing:
        """Write a piece; raises RpcError when the connection is broken."""
        found = self._find(params.connection_id)
        data = codec.decode_base64(params.chunk, "chunk")
        async with found.writing:
            try:
                if data:
                    await self._conn.server.loop.sock_sendall(found.sock, data)
                if params.end:
                    found.sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                raise _broken(error) from None
        return NOTHING

    def end(self, params: ConnectionParams) -> Nothing:
        """Close a connection; does nothing for one that is closed already."""
        found = self._open.pop(params.connection_id, None)
        if found is not None:
            self._end(found)
        return NOTHING

    def close(self) -> None:
        """Close all."""
        self._closed = True
        opened, self._open = self._open, {}
        for one in opened.values():
            if one is not None:
                self._end(one)
        self._reach.close()

    def _end(self, one: _Open) -> None:
        with contextlib.suppress(OSError):
            one.sock.shutdown(socket.SHUT_RDWR)  # what waits on it is told
        task = self._conn.server.loop.create_task(_closed(one))
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    def _find(self, key: str) -> _Open:
        found = self._open.get(key)
        if found is None:
            raise RpcError(INVALID_REQUEST, f"there is no connection {key[:80]!r}")
        return found


async def _closed(one: _Open) -> None:
    """Close its socket when no request uses it any more: its number is used again."""
    async with one.reading, one.writing:
        one.sock.close()


def _broken(error: OSError) -> RpcError:
    text = f"the connection is broken: {error.strerror or error}"
    return RpcError(INVALID_REQUEST, text, {"errno": error.errno or 0})


def _waiting(work: Callable[[ConnectionLoopback, Any], Any]) -> Callable[[Connection, Any], Any]:
    """A handler that waits for a process, and keeps no other request out meanwhile."""

    async def handler(conn: Connection, params: Any) -> Any:
        conn.calls.park(Lane.ORDINARY)
        try:
            return await work(conn.loopback, params)
        finally:
            conn.calls.unpark(Lane.ORDINARY)

    return handler


LOOPBACK_HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {
    "loopback/connect": _waiting(ConnectionLoopback.connect),
    "loopback/read": _waiting(ConnectionLoopback.read),
    "loopback/write": _waiting(ConnectionLoopback.write),
    "loopback/close": lambda conn, params: conn.loopback.end(params),
}
