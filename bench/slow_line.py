"""A TCP port that leads to another one of this machine, with a rate and a delay each way.

    python bench/slow_line.py PORT MBIT SECONDS

Prints its own port.  A stand-in for a line between two machines where no device can be shaped:
bytes wait in a queue of a quarter of a second's worth and arrive in order.
"""

from __future__ import annotations

import asyncio
import sys

CHUNK = 16 * 1024


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float, delay: float
) -> None:
    """Pass bytes on, each when the line would have delivered it."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(max(4, int(rate / 4 / CHUNK)))

    async def deliver() -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()

    task = loop.create_task(deliver())
    free = loop.time()
    try:
        while True:
            data = await reader.read(CHUNK)
            free = max(free, loop.time()) + len(data) / rate
            await queue.put((free + delay, data))
            if not data:
                return
            await asyncio.sleep(max(0.0, free - loop.time() - 0.25))
    finally:
        await task


async def main(port: int, mbit: float, delay: float) -> None:
    rate = mbit * 1e6 / 8

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            carry(reader, far_writer, rate, delay),
            carry(far_reader, writer, rate, delay),
            return_exceptions=True,
        )

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
