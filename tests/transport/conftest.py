"""Each test with a loop runs on asyncio's own and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from tests.transport.transport_kit import Run


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end; whatever the loop complains about fails the test."""

    def runner(main: Coroutine[Any, Any, None]) -> None:
        complaints: list[dict[str, Any]] = []

        def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            # The other library's server mentions clients that leave during its TLS handshake.
            if not type(context.get("protocol")).__module__.startswith("websockets."):
                complaints.append(context)

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(complain)
            async with asyncio.timeout(50):
                await main

        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as loop_runner:
            loop_runner.run(watched())
        assert complaints == []

    return runner
