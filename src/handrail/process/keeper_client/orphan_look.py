"""The question which children have left descendants behind."""

from __future__ import annotations

import asyncio

from handrail.errors import KeeperLost
from handrail.futures import retrieve_exception
from handrail.keeper import messages
from handrail.process.keeper_client.link import KeeperLink


class OrphanLook:
    """Asks one keeper.  One question is open at a time; callers that come meanwhile share the
    next."""

    def __init__(self, link: KeeperLink, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self._looking = asyncio.Lock()
        self._next: asyncio.Task[dict[int, int]] | None = None

    async def orphans(self) -> dict[int, int]:
        """How many descendants have outlived their parents, by child."""
        if self._next is None:
            self._next = self._loop.create_task(self._look())
            self._next.add_done_callback(retrieve_exception)
        return await asyncio.shield(self._next)

    async def _look(self) -> dict[int, int]:
        async with self._looking:
            self._next = None  # later callers must not get an answer from before they asked
            while True:
                try:
                    answer = await self._link.ask_of_children(messages.ORPHANS, [])
                    break
                except KeeperLost:
                    if not self._link.bereft:
                        raise  # else the next one is asked
        counts = messages.Orphans.unpack(answer.fields).counts
        return {int(child): count for child, count in counts.items()}
