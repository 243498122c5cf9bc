"""A port of this machine's loopback that leads to a port of a workspace's commands.

The commands may run here or on another machine; the listener is always here, where the caller is.
It is for the caller's user and root: the kernel says whose each peer is, before a byte is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import Self

from handrail.errors import HandrailError, UsageError
from handrail.executor.base import Executor, LoopbackStream
from handrail.name_hints import NamesChecked
from handrail.server.auth.exposure import is_overflow_user
from handrail.server.auth.loopback_users import LoopbackUsers
from handrail.transport.connection_limits import RefusalLog

log = logging.getLogger(__name__)

#: Connections at once; further ones wait in the backlog.
MOST = 1024
_BACKLOG = 512
_PIECE = 128 * 1024
_HERE = "127.0.0.1"
#: Delay before a connection is accepted again when no descriptor was free.
_SCARCE_SECONDS = 0.1
#: ``struct linger`` that resets a connection when it is closed.
_RESET = struct.pack("ii", 1, 0)


class AsyncExposure(NamesChecked):
    """A listener of this machine that leads to a port of commands.  Made by ``expose``.

    It ends with its workspace, or as a context manager.
    """

    def __init__(
        self,
        executor: Executor,
        loopback: str,
        inner_port: int,
        listener: socket.socket,
        closed: Callable[[AsyncExposure], None],
    ) -> None:
        self._executor = executor
        self._loopback = loopback
        self._listener = listener
        self._on_close = closed
        self._inner_port = inner_port
        self._port: int = listener.getsockname()[1]
        self._refusals = RefusalLog()
        self._users = LoopbackUsers(self._refused)
        self._room = asyncio.Semaphore(MOST)
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())
        # With the task, and not behind it: a `close` may be cancelled before it has ended.
        self._accepting.add_done_callback(self._let_go)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} leads to port {self.inner_port}>"

    @property
    def inner_port(self) -> int:
        """The port that commands listen on."""
        return self._inner_port

    @property
    def port(self) -> int:
        """The port of this machine."""
        return self._port

    @property
    def url(self) -> str:
        """Its address for a browser."""
        return f"http://{_HERE}:{self.port}"

    async def close(self) -> None:
        """Stop listening and break what is connected; can be repeated, raises nothing."""
        self._on_close(self)
        tasks = [self._accepting, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _let_go(self, _: asyncio.Task[None]) -> None:
        self._listener.close()
        self._users.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _refused(self, why: str) -> None:
        self._refusals.warn(f"{why.partition(';')[0]} (exposed port {self.port})")

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor is free, or the peer has gone already
                self._room.release()
                await asyncio.sleep(_SCARCE_SECONDS)
                continue
            if not self._users.admits(client):
                self._room.release()
                client.close()
                continue
            task = loop.create_task(self._carry(client))
            self._connections.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._room.release()

    async def _carry(self, client: socket.socket) -> None:
        """Carry one connection from its beginning to its end."""
        stream: LoopbackStream | None = None
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = await self._executor.connect_loopback(self._loopback, self.inner_port)
            await _relay(client, stream)
        except (OSError, HandrailError) as error:
            log.debug("a connection to port %d ended: %s", self.port, error)
            with contextlib.suppress(OSError):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        finally:
            client.close()
            if stream is not None:
                await stream.close()


async def _relay(client: socket.socket, stream: LoopbackStream) -> None:
    """Relay both ways until both have ended; raises OSError when either is broken."""
    loop = asyncio.get_running_loop()

    async def inwards() -> None:
        while data := await loop.sock_recv(client, _PIECE):
            await stream.send(data)
        await stream.end()

    async def outwards() -> None:
        while data := await stream.receive():
            await loop.sock_sendall(client, data)
        client.shutdown(socket.SHUT_WR)

    ways = [loop.create_task(inwards()), loop.create_task(outwards())]
    try:
        await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


def open_exposure(
    executor: Executor,
    loopback: str,
    port: int,
    local_port: int | None,
    closed: Callable[[AsyncExposure], None],
) -> AsyncExposure:
    """Begin to listen; raises UsageError for a port that is none or is taken, and as the overflow
    user, whose connections cannot be told from those of others."""
    if is_overflow_user():
        raise UsageError(
            "this program runs as the overflow user, which stands for every user without a uid in"
            " this user namespace, so a port could not be kept from them; run it as a user of its"
            " own"
        )
    check_port(port, "port")
    if local_port is not None:
        check_port(local_port, "local_port")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HERE, local_port or 0))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"port {local_port} of this machine cannot be listened on ({error.strerror}); name"
            " another, or none to have a free one chosen"
        ) from None
    return AsyncExposure(executor, loopback, port, listener, closed)


def check_port(port: object, name: str) -> None:
    """Raise UsageError for what is no port."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65_535:
        raise UsageError(f"{name} is a number from 1 to 65535, not {port!r}")
