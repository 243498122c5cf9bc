"""Where real children are started and everything they do is written down."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from handrail.process.child import Child
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import KeeperHandle, start_keeper
from handrail.process.output.output_log import Chunk
from handrail.process.output.stream import STREAM_NAMES
from handrail.process.spec import ProcessSpec
from handrail.process.table import ProcessTable
from tests.support.eventually import LIMIT, eventually_so
from tests.support.processes import descriptors

PYTHON = sys.executable
PATH = os.fsencode(os.environ.get("PATH", "/usr/bin:/bin"))


def spec(*argv: str, cwd: str = "/", env: dict[str, str] | None = None, **how: Any) -> ProcessSpec:
    """A command, with a PATH and nothing else in its environment."""
    given = {b"PATH": PATH, b"LC_ALL": b"C"} if env is None else {}
    given |= {os.fsencode(k): os.fsencode(v) for k, v in (env or {}).items()}
    return ProcessSpec(tuple(map(os.fsencode, argv)), os.fsencode(cwd), given, **how)


def sh(script: str, **how: Any) -> ProcessSpec:
    return spec("/bin/sh", "-c", script, **how)


def python(script: str, *words: str, **how: Any) -> ProcessSpec:
    return spec(PYTHON, "-I", "-S", "-c", script, *words, **how)


@dataclass
class Recorder:
    """A sink that keeps everything and checks the order of the numbers."""

    ready: bool = True
    events: list[tuple[int, str]] = field(default_factory=list)
    data: dict[str, bytearray] = field(
        default_factory=lambda: {name: bytearray() for name in STREAM_NAMES}
    )
    sizes: list[int] = field(default_factory=list)
    stalled: list[Child] = field(default_factory=list)

    def output(self, child: Child, chunk: Chunk) -> None:
        data = child.output.read_chunk(chunk)
        assert len(data) == chunk.size > 0
        name = STREAM_NAMES[chunk.stream]
        self._number(chunk.seq, name)
        self.data[name] += data
        self.sizes.append(chunk.size)

    def exited(self, child: Child, seq: int) -> None:
        assert child.exit is not None
        self._number(seq, "exited")

    def closed(self, child: Child, seq: int) -> None:
        self._number(seq, "closed")

    def blocked(self, child: Child) -> None:
        self.stalled.append(child)

    def resume(self) -> None:
        self.ready = True
        stalled, self.stalled = self.stalled, []
        for child in stalled:
            child.output.resume()

    def _number(self, seq: int, what: str) -> None:
        assert seq == len(self.events) + 1, "numbers are not contiguous"
        assert "closed" not in self.kinds, "something came after the close"
        self.events.append((seq, what))

    @property
    def kinds(self) -> list[str]:
        return [what for _, what in self.events]

    @property
    def out(self) -> bytes:
        return bytes(self.data["stdout"])

    @property
    def err(self) -> bytes:
        return bytes(self.data["stderr"])

    @property
    def tty(self) -> bytes:
        return bytes(self.data["pty"])


class Workshop:
    """A launcher, a table and their loop."""

    def __init__(self, handle: KeeperHandle) -> None:
        self.loop = asyncio.get_running_loop()
        self.keeper = handle.pid
        self.launcher = Launcher(handle, self.loop)
        self.table = ProcessTable(self.launcher, self.loop)
        self._keys = 0

    async def start(self, what: ProcessSpec, sink: Recorder | None = None) -> Child:
        self._keys += 1
        return await self.table.start(f"p{self._keys}", what, lambda: sink)

    async def record(self, what: ProcessSpec) -> tuple[Child, Recorder]:
        """Start one that is listened to."""
        sink = Recorder()
        return await self.start(what, sink), sink

    async def finished(self, child: Child) -> None:
        async with asyncio.timeout(LIMIT):
            while not child.closed:
                await child.changed(LIMIT)

    async def exited(self, child: Child) -> None:
        async with asyncio.timeout(LIMIT):
            while child.running:
                await child.changed(LIMIT)

    async def done(self, what: ProcessSpec) -> tuple[Child, Recorder]:
        """Run one to its end."""
        child, sink = await self.record(what)
        await self.finished(child)
        return child, sink

    async def said(self, child: Child, sink: Recorder, text: bytes) -> None:
        """Wait until the child has written this."""
        async with asyncio.timeout(LIMIT):
            while not any(text in data for data in sink.data.values()):
                await child.changed(LIMIT)

    async def settled(self) -> None:
        """Everything the keeper was told is done."""
        self.launcher.link._send_gathered()
        await self.launcher.orphans()

    async def keeper_fds(self) -> int:
        await self.settled()
        return len(descriptors(self.keeper))

    async def until(self, check: Callable[[], Any], what: str = "") -> Any:
        return await eventually_so(check, what)


@asynccontextmanager
async def workshop() -> AsyncIterator[Workshop]:
    """A workshop with a keeper of its own; both are gone afterwards."""
    shop = Workshop(start_keeper())
    try:
        await shop.launcher.hello()
        yield shop
    finally:
        async with asyncio.timeout(10):
            await shop.table.end_all()
            await shop.launcher.stop()
