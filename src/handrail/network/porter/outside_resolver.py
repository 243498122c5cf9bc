"""Look names up off the loop, a few at a time for each process.

The resolver of the C library blocks for seconds when a name server is silent, and a command can
choose names whose server is.  So each process has few look-ups at once, and nothing waits longer
than the limit, whatever its thread does.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

from handrail.network import machine
from handrail.network.hosts import Address

SECONDS = 5.0
_THREADS = 32
_AT_ONCE = 4


def threads() -> ThreadPoolExecutor:
    """The threads for the look-ups of all processes."""
    return ThreadPoolExecutor(_THREADS, "resolver")


class FairResolver:
    """The look-ups of one process, in threads of all."""

    __slots__ = ("_places", "_threads")

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def look_up(self, name: str) -> list[Address]:
        """The addresses of a name; none when there are none, or no answer came in time."""
        try:
            async with asyncio.timeout(SECONDS):
                await self._places.acquire()
                loop = asyncio.get_running_loop()
                asked = loop.run_in_executor(self._threads, machine.look_up, name)
                # Its thread has the place until it ends, also when no connection waits any more.
                asked.add_done_callback(lambda _: self._places.release())
                found = await asyncio.shield(asked)
        except TimeoutError:
            return []
        return found
