"""Dialing the server of a node: a fresh token each time, a few attempts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from handrail.errors import ConnectionLost
from handrail.executor.client.dial import Dialer
from handrail.transport.base import Receiver, Transport
from handrail.transport.websocket_handshake import HandshakeError

if TYPE_CHECKING:
    import ssl as ssl_module

#: Dials under way to one node: a server answers 503 to a crowd of unfinished handshakes.
MOST_DIALS = 16
_CROWDED = 503
_PAUSE = 0.05


class SignedDialer:
    """Dials ``ws://`` and ``wss://`` with a token that is made for each dial."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str | None],
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        self.where = url
        self.reconnects = True
        self._token = token
        self._ssl = ssl

    async def dial(self, receiver: Receiver, timeout: float | None) -> Transport:
        from handrail.transport import websocket

        token = self._token()
        headers = [("Authorization", f"Bearer {token}")] if token is not None else []
        return await websocket.connect(
            self.where, receiver, headers=headers, open_timeout=timeout, ssl=self._ssl
        )

    async def close(self) -> None:
        pass


class GatedDialer:
    """One of the dialers of a node: only so many of them dial at a time."""

    def __init__(self, dialer: Dialer, gate: asyncio.Semaphore, *, reconnects: bool) -> None:
        self._dialer = dialer
        self._gate = gate
        self.where = dialer.where
        self.reconnects = reconnects and dialer.reconnects

    async def dial(self, receiver: Receiver, timeout: float | None) -> Transport:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        pause = _PAUSE
        while True:
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                raise ConnectionLost(f"{self.where} is crowded; it took no connection in time")
            try:
                async with self._gate:
                    return await self._dialer.dial(receiver, left)
            except HandshakeError as error:
                if error.status != _CROWDED:
                    raise
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)

    async def close(self) -> None:
        await self._dialer.close()
