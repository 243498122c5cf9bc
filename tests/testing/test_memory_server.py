"""The server in memory: the whole wire without a socket."""

from __future__ import annotations

import asyncio

from handrail.executor.base import SpawnRequest
from handrail.executor.client.dial import MemoryDialer
from handrail.executor.remote import RemoteExecutor
from handrail.testing import memory_executor, memory_server


async def output(executor: RemoteExecutor, script: str) -> bytes:
    request = SpawnRequest("p", ("/bin/sh", "-c", script), "/", {"PATH": "/usr/bin:/bin"})
    session = await executor.spawn(request)
    return b"".join([event.data async for event in session.subscribe_output()])


async def test_a_command_through_the_whole_wire() -> None:
    async with asyncio.timeout(20), memory_executor() as executor:
        assert await output(executor, "echo through") == b"through\n"
        assert "keeper" in executor.client.extensions


async def test_several_clients_of_one_server() -> None:
    async with asyncio.timeout(20), memory_server() as accept:
        executors = [await RemoteExecutor.connect(MemoryDialer(accept)) for _ in range(3)]
        found = await asyncio.gather(*(output(e, "echo mine") for e in executors))
        assert found == [b"mine\n"] * 3
        for executor in executors:
            await executor.close()
