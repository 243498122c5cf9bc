"""A build farm on one machine: 50 commands, eight at a time, each in the sandbox.

python examples/build_farm.py
"""

from __future__ import annotations

import asyncio
import tempfile

from handrail import AsyncWorkspace, Result

COMMANDS = 50
AT_A_TIME = 8


async def build(ws: AsyncWorkspace, turn: asyncio.Semaphore, number: int) -> Result[str]:
    """One build: it writes what it made, and every seventh fails."""
    script = f"echo built {number} > target-{number}; [ $(({number} % 7)) -ne 0 ]"
    async with turn:
        return await ws.run(script, timeout=60)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncWorkspace(directory) as ws:
            turn = asyncio.Semaphore(AT_A_TIME)
            results = await asyncio.gather(*(build(ws, turn, n) for n in range(1, COMMANDS + 1)))
            made = [entry.name for entry in await ws.files.list() if entry.is_file]
    failed = [n for n, result in enumerate(results, 1) if result.exit_code != 0]
    slowest = max(result.duration for result in results)
    print(f"{len(results)} commands, {len(made)} targets, failed: {failed}")
    print(f"the slowest took {slowest * 1000:.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
