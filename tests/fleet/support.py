"""Servers that are hosts of a fleet, and a line to one of them that can be cut without a word."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

from handrail.fleet import Fleet
from tests.support.eventually import LIMIT
from tests.support.servers import ServerProcess, server_process

#: What a workspace asks for unless its test is about that.
SMALL: dict[str, Any] = {"cpus": 1, "memory": "1MiB"}
PLAIN: dict[str, Any] = {**SMALL, "sandbox": "off"}
SHARE = "cpus=8,memory=1GiB"


@contextmanager
def host(
    place: Path,
    *more: str,
    share: str = SHARE,
    min_free: str = "0",
    listen: str = "ws://127.0.0.1:0",
) -> Iterator[ServerProcess]:
    """One server with workspaces."""
    options = ("--workspaces", str(place / "w"), "--share", share, "--min-free", min_free)
    with server_process(place / "s", *options, *more, listen=listen) as server:
        yield server


@asynccontextmanager
async def hosts(place: Path, count: int = 2, **how: Any) -> AsyncIterator[list[ServerProcess]]:
    """Some servers."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(host(place / str(n), **how)) for n in range(count)]


@asynccontextmanager
async def fleet_of(servers: list[ServerProcess], **options: Any) -> AsyncIterator[Fleet]:
    """A fleet on these servers, all of them ready."""
    async with Fleet([server.url for server in servers], **options) as fleet:
        await fleet.wait(len(servers), timeout=30.0)
        yield fleet


def kill_hard(*pids: int | None) -> None:
    for pid in pids:
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Swallower:
    """Passes connections on to a port until it is told to swallow everything."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._flows = asyncio.Event()
        self._flows.set()
        #: Something was swallowed, or is held back.
        self.holds = asyncio.Event()
        self._refuses = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self) -> None:
        self._flows.clear()

    def deliver(self) -> None:
        """Pass on what was held back, late, and everything from now on."""
        self._flows.set()

    def refuse(self) -> None:
        """End all connections, and those to come."""
        self._refuses = True
        for task in self._tasks:
            task.cancel()

    def flow(self) -> None:
        """New connections pass again; what was swallowed is lost with its connection."""
        for task in self._tasks:
            task.cancel()
        self._refuses = False
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.close()
            return
        there = await asyncio.open_connection(*self._target)
        loop = asyncio.get_running_loop()
        pairs = ((reader, there[1]), (there[0], writer))
        for source, target in pairs:
            task = loop.create_task(self._pass(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self._flows.is_set():
                    self.holds.set()
                await self._flows.wait()
                target.write(data)
        finally:
            target.close()


async def until(check: Callable[[], Awaitable[object]], limit: float = LIMIT) -> None:
    """Ask until the answer is true."""
    async with asyncio.timeout(limit):
        while not await check():  # noqa: ASYNC110 (that is what it is for)
            await asyncio.sleep(0.05)
