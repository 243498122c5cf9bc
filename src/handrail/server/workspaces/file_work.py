"""The threads in which the files of workspaces are made and removed, never on the event loop.

Two sets of them, so that a small directory does not wait behind the copy of a large template.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from handrail.errors import HandrailError
from handrail.filesystem.pool import FilePool
from handrail.server.workspaces.tree_copy import Stopped

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for a few system calls, and for a whole tree.
_QUICK_SECONDS = 60.0
_LONG_SECONDS = 3600.0


class FileWork:
    """Runs blocking file work of one server's workspaces."""

    def __init__(self) -> None:
        self._quick = FilePool(2, spare=6)
        self._long = FilePool(2, spare=0)
        self.stopped = False

    def is_stopped(self) -> bool:
        """Asked by long work, which gives up then."""
        return self.stopped

    async def quick(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._quick.run(fn, *args, deadline=_QUICK_SECONDS)

    async def long(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._long.run(fn, *args, deadline=_LONG_SECONDS)

    def close(self) -> None:
        self.stopped = True
        self._quick.close()
        self._long.close()


async def quietly(work: Awaitable[Any]) -> None:
    """Wait for work that no client waits for; a failure is logged."""
    try:
        await work
    except (HandrailError, OSError, Stopped) as error:
        log.warning("work for the workspaces failed: %s", error)
