"""Clean-up that a cancellation cannot cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from handrail.futures import retrieve_exception

T = TypeVar("T")


async def to_the_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end even if the caller is cancelled; the cancellation is raised afterwards."""
    task = asyncio.get_running_loop().create_task(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                break  # its own; ours may arrive when it is done, and is raised too
            cancelled = error
        except BaseException:  # noqa: BLE001 (the task's own: raised below, with its result)
            break
    if cancelled is not None:
        retrieve_exception(task)
        raise cancelled
    return task.result()
