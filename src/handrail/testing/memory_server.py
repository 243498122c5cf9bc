"""A whole server in this process, reached without a socket.

Everything but the connection is real (sessions, the wire, a keeper and its children), so that a
test sees what a client of a server would see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from handrail.executor.client.dial import MemoryDialer
from handrail.executor.remote import RemoteExecutor
from handrail.transport.base import Receiver


@asynccontextmanager
async def memory_server(**settings: Any) -> AsyncIterator[Callable[[], Receiver]]:
    """Run a server; the yielded function returns the receiver of a new connection's server end.

    ``settings`` are those of ``handrail.server_settings.ServerSettings`` (``detach_ttl`` in
    seconds, say).  Every process ends with it.  Raises KeeperLost when the keeper does not start.
    """
    from handrail.process.keeper_client.spawn_children import Launcher
    from handrail.process.keeper_client.start_keeper import start_keeper
    from handrail.server.app import Server
    from handrail.server.auth.tokens import AuthSettings
    from handrail.server.connection import Connection
    from handrail.server_settings import Listen, ServerSettings

    loop = asyncio.get_running_loop()
    launcher = Launcher(start_keeper(), loop)
    try:
        await launcher.hello()
    except BaseException:
        launcher.close()
        raise
    # As on a socket: the end of one connection is not the end of the server.
    given = ServerSettings(Listen("unix"), AuthSettings(), **settings)
    server = Server(given, launcher, loop)
    try:
        yield lambda: Connection(server, "memory")
    finally:
        await server.stop()


@asynccontextmanager
async def memory_executor(**settings: Any) -> AsyncIterator[RemoteExecutor]:
    """A RemoteExecutor on its own server in memory; raises what ``memory_server`` does."""
    async with memory_server(**settings) as accept:
        executor = await RemoteExecutor.connect(MemoryDialer(accept))
        try:
            yield executor
        finally:
            await executor.close()
