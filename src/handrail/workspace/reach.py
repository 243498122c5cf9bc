"""From ``at=`` to an executor: this machine's own, shared, or one at the end of a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from handrail.executor.base import Executor

#: Gives back what ``reach`` handed out.
Release = Callable[[], Coroutine[Any, Any, None]]


class _Shared:
    """The local executor of one event loop, and how many use it."""

    __slots__ = ("executor", "users")

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.users = 0


_local: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


async def reach_local() -> tuple[Executor, Release]:
    """The executor of this loop.  It ends, and its keeper with it, when nobody uses it."""
    from handrail.executor.local import LocalExecutor

    loop = asyncio.get_running_loop()
    shared = _local.get(loop)
    if shared is None:
        shared = _local[loop] = _Shared(LocalExecutor())
    shared.users += 1

    async def release() -> None:
        shared.users -= 1
        if shared.users == 0:
            if _local.get(loop) is shared:
                del _local[loop]
            await shared.executor.close()

    return shared.executor, release
