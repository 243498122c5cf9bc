"""The fixtures that users' tests can have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from server.process_kit import nothing_left

from handrail.executor.base import SpawnRequest
from handrail.executor.remote import RemoteExecutor
from handrail.testing import FakeExecutor
from handrail.testing.fixtures import fake_executor, handrail_server

__all__ = ["fake_executor", "handrail_server"]


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    with nothing_left():
        yield


def test_a_server_of_its_own(handrail_server: str) -> None:
    async def main() -> bytes:
        executor = await RemoteExecutor.connect(handrail_server)
        try:
            session = await executor.spawn(SpawnRequest("p", ("/bin/echo", "hello"), "/", {}))
            return b"".join([event.data async for event in session.subscribe_output()])
        finally:
            await executor.close()

    assert asyncio.run(main()) == b"hello\n"


def test_a_scripted_executor(fake_executor: FakeExecutor) -> None:
    async def main() -> int | None:
        fake_executor.replies("true")
        session = await fake_executor.spawn(SpawnRequest("p", ("true",), "/", {}))
        return (await session.wait()).code

    assert asyncio.run(main()) == 0
