"""A proxy that cuts, stalls, splits and delays connections at random, from a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Mood:
    """How bad the weather is; chances are per piece of data that passes."""

    cut: float = 0.0
    stall: float = 0.0
    split: float = 0.0
    delay: float = 0.0
    longest_stall: float = 0.3
    longest_delay: float = 0.02


@dataclass
class ChaosProxy:
    """One listening port in front of one server."""

    target: tuple[str, int]
    rng: random.Random
    mood: Mood = field(default_factory=Mood)
    url: str = ""
    connections: int = 0
    cuts: int = 0
    #: Nothing passes while this is clear.
    open: asyncio.Event = field(default_factory=asyncio.Event)
    _lines: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    refusing: bool = False

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        pair = (writer, there_writer)
        self._writers.update(pair)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.ensure_future(self._pass_on(source, sink, pair))
            self._lines.add(task)
            task.add_done_callback(self._lines.discard)

    async def _pass_on(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        rng = self.rng
        try:
            while data := await source.read(rng.choice((512, 16_384, 65_536))):
                await self.open.wait()
                mood = self.mood
                if rng.random() < mood.delay:
                    await asyncio.sleep(rng.random() * mood.longest_delay)
                if rng.random() < mood.stall:
                    await asyncio.sleep(rng.random() * mood.longest_stall)
                if rng.random() < mood.cut:
                    # Half of what was on its way arrives, as with a real line.
                    sink.write(data[: len(data) // 2])
                    self.cuts += 1
                    break
                if rng.random() < mood.split:
                    for at in range(0, min(len(data), 64), 7):
                        sink.write(data[at : min(at + 7, 64)])
                        await sink.drain()
                    data = data[64:]
                sink.write(data)
                await sink.drain()
        except (OSError, RuntimeError):  # uvloop says the second of a closed line
            pass
        finally:
            for writer in pair:
                writer.transport.abort()
                self._writers.discard(writer)

    def cut_all(self) -> None:
        """Every connection breaks now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        self.cut_all()
        for task in list(self._lines):
            task.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)


@asynccontextmanager
async def chaos(url: str, seed: int, mood: Mood | None = None) -> AsyncIterator[ChaosProxy]:
    """A proxy in front of ``url``."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = ChaosProxy((parts.hostname, parts.port), random.Random(seed), mood or Mood())
    proxy.open.set()
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
