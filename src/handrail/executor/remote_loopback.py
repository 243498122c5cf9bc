"""Connections to what processes of another machine listen on, over the wire.

The next piece is asked for while the caller uses the last one: two are held at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from secrets import token_hex
from typing import Any

from handrail.errors import ExecutorTransportFailed, RpcError, TransportError
from handrail.executor.base import LoopbackStream
from handrail.executor.client.session import ExecServerClient
from handrail.protocol import codec


async def connect(
    client: ExecServerClient, name: str, port: int, timeout: float | None
) -> RemoteStream:
    """Connect; raises ConnectionRefusedError or ExecutorTransportFailed."""
    key = token_hex(8)
    params = {"loopback": name, "port": port, "connectionId": key}
    try:
        await client.call("loopback/connect", params, timeout=timeout)
    except RpcError as error:
        raise ConnectionRefusedError(error.message) from None
    except TransportError as error:
        raise ExecutorTransportFailed(str(error)) from error
    return RemoteStream(client, key)


class RemoteStream(LoopbackStream):
    """One connection; it breaks with the line to the server."""

    def __init__(self, client: ExecServerClient, key: str) -> None:
        self._client = client
        self._key = key
        self._ahead: asyncio.Task[dict[str, Any]] | None = None

    async def receive(self) -> bytes:
        task, self._ahead = self._ahead or self._ask(), None
        try:
            answer = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        if answer["end"]:
            return b""
        self._ahead = self._ask()
        return codec.decode_base64(answer["chunk"], "chunk")

    def _ask(self) -> asyncio.Task[dict[str, Any]]:
        return asyncio.get_running_loop().create_task(self._call("loopback/read"))

    async def send(self, data: bytes) -> None:
        await self._call("loopback/write", chunk=codec.encode_base64(data).decode())

    async def end(self) -> None:
        await self._call("loopback/write", end=True)

    async def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await self._ahead
        self._client.mention("loopback/close", {"connectionId": self._key})

    async def _call(self, method: str, **params: object) -> dict[str, Any]:
        given = {"connectionId": self._key, **params}
        try:
            answer: dict[str, Any] = await self._client.call(method, given, prompt=False)
        except (RpcError, TransportError, ExecutorTransportFailed) as error:
            raise ConnectionResetError(str(error)) from None
        return answer
