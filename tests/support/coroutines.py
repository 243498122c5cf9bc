"""The one way to run a coroutine of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

# The first loop of a process opens a pipe that stays.
uvloop.new_event_loop().close()

#: Seconds a test may take; below the 60 of pytest, which ends the whole run.
LONGEST = 55.0


def run(main: Coroutine[Any, Any, T], loop: str = "uvloop") -> T:
    """Run a coroutine to its end on this kind of loop; what the loop complains about fails it."""
    complaints: list[dict[str, Any]] = []

    def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # The server of that library mentions clients that leave during its TLS handshake.
        if not type(context.get("protocol")).__module__.startswith("websockets."):
            complaints.append(context)

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(complain)
        async with asyncio.timeout(LONGEST):
            return await main

    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(watched())
    assert complaints == []
    return result
