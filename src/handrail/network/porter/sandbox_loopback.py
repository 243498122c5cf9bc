"""Connections to servers of the command's own, on the loopback of its sandbox.

Tools send requests for 127.0.0.1 through the proxy, since no variable tells them otherwise.  What
listens in there is reached with a socket that was made in there: that grants nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from concurrent.futures import Executor

from handrail.network.address_classes import LOCALHOST
from handrail.network.hosts import Address, Host
from handrail.network.inner_sockets import maker
from handrail.network.porter import streams

#: The port of the porter's own listener in there: a connection to it would be one to itself.
OWN_PORT = 800
_SECONDS = 5.0
_SPARE = {4: ("tcp", 6), 6: ("tcp6", 2)}


class SandboxLoopback:
    """Unconnected sockets of one sandbox, made a few at a time."""

    def __init__(self, network: int, threads: Executor | None) -> None:
        """Takes the descriptor.  ``threads``: where sockets are made; None: those of the loop."""
        self.network = network
        self._threads = threads
        self._spare: dict[int, list[socket.socket]] = {4: [], 6: []}
        self._making = asyncio.Lock()

    async def connect(self, host: Host, port: int) -> socket.socket | None:
        """A connection to what listens inside; None when nothing does."""
        if port == OWN_PORT:
            return None
        addresses: Sequence[Address] = LOCALHOST if host.address is None else (host.address,)
        loop = asyncio.get_running_loop()
        for address in addresses:
            try:
                sock = await self._take(address.version)
            except OSError:
                continue  # no IPv6, or the sandbox has ended
            try:
                sock.setblocking(False)
                await _connect(loop, sock, (str(address), port))
                streams.prepare(sock)
            except ConnectionRefusedError:
                self._spare[address.version].append(sock)  # as good as new
            except (OSError, TimeoutError):
                sock.close()
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        return None

    async def _take(self, version: int) -> socket.socket:
        spare = self._spare[version]
        async with self._making:
            if not spare:
                kind, number = _SPARE[version]
                loop = asyncio.get_running_loop()
                # A descriptor of its own: `close` may free the number before the thread uses it.
                making = loop.run_in_executor(
                    self._threads, _make, os.dup(self.network), [kind] * number
                )
                spare += await asyncio.shield(making)  # or that descriptor would stay open
            return spare.pop()

    def close(self) -> None:
        """Close the spare sockets and the handle of the namespace."""
        for sockets in self._spare.values():
            for sock in sockets:
                sock.close()
            sockets.clear()
        os.close(self.network)


def _make(network: int, kinds: list[str]) -> list[socket.socket]:
    try:
        return maker.make(network, kinds)
    finally:
        os.close(network)


async def _connect(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, to: tuple[str, int]
) -> None:
    try:
        await streams.connect(loop, sock, to, _SECONDS)
    except ConnectionAbortedError:
        # Of the attempt before, which was refused: the kernel says so once more, then tries.
        await streams.connect(loop, sock, to, _SECONDS)
