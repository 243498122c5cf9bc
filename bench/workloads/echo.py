"""A line written to ``cat`` and seen again: what typing feels like, alone and beside a flood."""

from __future__ import annotations

import asyncio

from wire import Connection, Process, now, session

from .context import Context, Metrics, us

#: Round trips that are not counted: the first ones find everything cold.
WARM_UP = 5


async def echo(ctx: Context) -> Metrics:
    """Through pipes."""
    return await measure(ctx, tty=False)


async def echo_pty(ctx: Context) -> Metrics:
    """Through a terminal."""
    return await measure(ctx, tty=True)


async def flood_echo(ctx: Context) -> Metrics:
    """Beside a process that writes without end: on its connection, and on another one.

    The client reads the flood as well, so the figures hold its queue too; that is what a
    user of one connection sees, and it is the same client for every server.
    """
    count = ctx.size(150, 20)
    c = await session(ctx.url)
    other = await session(ctx.url)
    flood, _ = await c.start("flood", ["/bin/cat", "/dev/zero"])
    beside = await Cat.start(c, tty=False)
    apart = await Cat.start(other, tty=False)
    metrics: Metrics = {"lat.echo_beside_flood": [], "lat.echo_other_connection": []}
    bytes_before, begin = flood.bytes, now()
    for i in range(count):
        for cat, key in ((beside, "lat.echo_beside_flood"), (apart, "lat.echo_other_connection")):
            total, _ = await cat.round_trip(i)
            if i >= WARM_UP:
                metrics[key].append(us(total))
    flooded = flood.bytes - bytes_before
    metrics["flood_MB_s"] = flooded / (now() - begin) / 1e6
    metrics["bad.flood_stood_still"] = int(flooded == 0)
    await c.call("process/terminate", {"processId": "flood"})
    await asyncio.wait_for(flood.done, 10)
    await beside.end()
    await apart.end()
    await c.close()
    await other.close()
    return metrics


async def measure(ctx: Context, tty: bool) -> Metrics:
    """Round trips one after the other, by an ordinary client and by one that acks at once."""
    metrics: Metrics = {}
    ways = (("", False, ctx.size(60, 20)), ("_quickack", True, ctx.size(400, 50)))
    for tag, quickack, count in ways:
        c = await session(ctx.url, quickack=quickack)
        cat = await Cat.start(c, tty)
        round_trip: list[float] = []
        first_byte: list[float] = []
        metrics["lat.round_trip" + tag] = round_trip
        metrics["lat.first_byte" + tag] = first_byte
        cpu_before, _ = ctx.server.cpu()
        for i in range(count):
            total, first = await cat.round_trip(i)
            if i >= WARM_UP:
                round_trip.append(us(total))
                first_byte.append(us(first))
        cpu, _ = ctx.server.cpu()
        metrics["server_cpu_us_per_echo" + tag] = (cpu - cpu_before) * 1e6 / count
        await cat.end()
        await c.close()
    return metrics


class Cat:
    """A running ``cat`` that one line at a time is sent through."""

    def __init__(self, c: Connection, process: Process, tty: bool) -> None:
        self.c = c
        self.process = process
        # A terminal shows the line (with \r\n) and cat repeats it.
        self.bytes_per_line = 18 if tty else 8
        self.need = 0
        self.first: float | None = None
        self.complete: asyncio.Future[float] = c.loop.create_future()
        process.hook = self.saw_output

    @classmethod
    async def start(cls, c: Connection, tty: bool) -> Cat:
        """Start it and give it time to wait for its first line."""
        process, _ = await c.start("cat", ["/bin/cat"], tty=tty, pipe_stdin=not tty)
        await asyncio.sleep(0.1)
        return cls(c, process, tty)

    def saw_output(self, process: Process, _data: bytes, _start: int, _end: int) -> None:
        """Called on each chunk."""
        if self.first is None:
            self.first = now()
        if process.bytes >= self.need and not self.complete.done():
            self.complete.set_result(now())

    async def round_trip(self, number: int) -> tuple[float, float]:
        """Send one line; seconds until all of it was back, and until the first of it was."""
        self.first = None
        self.need = self.process.bytes + self.bytes_per_line
        self.complete = self.c.loop.create_future()
        begin = now()
        written = self.c.write_request("cat", b"%07d\n" % number, f"w{number}")
        end = await asyncio.wait_for(self.complete, 10)
        await written
        return end - begin, self.first - begin

    async def end(self) -> None:
        """Terminate it."""
        await self.c.call("process/terminate", {"processId": "cat"})
        await asyncio.wait_for(self.process.done, 10)
