"""Clean-up that a cancellation cannot cut short, and that does not swallow it either."""

from __future__ import annotations

import asyncio

import pytest

from handrail.workspace.uncancellable import to_the_end


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_cancellation_is_raised_whenever_it_comes(turns: int) -> None:
    done = asyncio.Event()

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        done.set()

    task = asyncio.ensure_future(to_the_end(work()))
    for _ in range(turns):
        await asyncio.sleep(0)
    asked = task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled() == asked
    await asyncio.wait_for(done.wait(), 5)
