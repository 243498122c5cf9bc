"""Where a stored result is read: on this machine's disk, or by calls to the server that has it.

``find_result`` looks on the disk first: the server that wrote it may be gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from handrail.errors import ExecutorTransportFailed, RpcError, TransportError
from handrail.protocol import codec
from handrail.results import store
from handrail.results.store import About

if TYPE_CHECKING:
    from handrail.executor.client.session import ExecServerClient


class Result(Protocol):
    """A stored result; everything raises ExecutorTransportFailed or OSError."""

    about: About

    async def read(self, offset: int) -> bytes:
        """Bytes of its records; empty at the end."""

    async def forget(self) -> None:
        """Remove it: it has been fetched."""


class LocalResult:
    """A result on this machine's disk."""

    def __init__(self, stored: store.Stored) -> None:
        self._stored = stored
        self.about = stored.about

    async def read(self, offset: int) -> bytes:
        return await asyncio.to_thread(self._stored.read, offset)

    async def forget(self) -> None:
        await asyncio.to_thread(self._stored.remove)


class RemoteResult:
    """A result on the machine of a server."""

    def __init__(self, client: ExecServerClient, params: dict[str, Any], timeout: float | None):
        self._client = client
        self._params = params
        self._timeout = timeout
        self.about = About(session="", owner="", process_id="", argv=[], started_at=0.0)

    async def find(self) -> bool:
        """Look it up; whether there is one."""
        found = (await self._call({}))["about"]
        if found is not None:
            self.about = msgspec.convert(found, About)
        return found is not None

    async def read(self, offset: int) -> bytes:
        return codec.decode_base64((await self._call({"offset": offset}))["data"], "data")

    async def forget(self) -> None:
        await self._call({"forget": True})

    async def _call(self, more: dict[str, Any]) -> Any:
        try:
            return await self._client.call(
                "session/result", {**self._params, **more}, timeout=self._timeout, repeat=True
            )
        except (RpcError, TransportError) as error:
            raise ExecutorTransportFailed(f"a stored result cannot be read: {error}") from error


async def find_result(
    session: str,
    process_id: str,
    client: ExecServerClient | None = None,
    timeout: float | None = None,
) -> Result | None:
    """The stored result of a process of a session; "" is that of one that outlived its own."""
    stored = await asyncio.to_thread(store.find, session, process_id)
    if stored is not None:
        return LocalResult(stored)
    if client is None or "sessionResult" not in client.extensions:
        return None
    remote = RemoteResult(client, {"sessionId": session, "processId": process_id}, timeout)
    return remote if await remote.find() else None
