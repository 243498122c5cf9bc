"""A watch of a tree on an event loop: it waits without a thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from handrail.filesystem.pool import DEADLINE, FilePool
from handrail.filesystem.trees.tree_watch import Happened, TreeWatch
from handrail.futures import set_done

#: The longest wait of one call.
LONGEST_WAIT = 10.0


class Watch(Protocol):
    """A watch of this machine or another; one caller at a time."""

    async def read(self, wait: float) -> Happened:
        """What has happened since the last call, or happens within ``wait`` seconds.

        Raises FilesError of the kind not_found when the watch is gone and has to be laid anew.
        """

    async def close(self) -> None:
        """Stop watching; harmless when repeated."""


class LoopWatch(Watch):
    """``Watch`` on this machine, outside of any sandbox.

    A client may read it twice at once, or end it while a thread reads: the thread's fd must not be
    closed then, for its number may be another client's before it is read.
    """

    def __init__(self, pool: FilePool, watch: TreeWatch) -> None:
        self._pool = pool
        self._watch = watch
        self._turn = asyncio.Lock()
        #: Held by the thread that uses the watch.
        self._use = threading.Lock()
        self._stopped = False
        #: What a read waits for, until there is something to be read.
        self._waits: asyncio.Future[None] | None = None

    @classmethod
    async def lay(cls, pool: FilePool, path: bytes | str, *, recursive: bool) -> LoopWatch:
        """Watch a path; raises FilesError."""
        watch = await pool.run(
            TreeWatch, path, recursive=recursive, deadline=DEADLINE, discard=TreeWatch.close
        )
        return cls(pool, watch)

    async def read(self, wait: float) -> Happened:
        async with self._turn:
            return await self._read(wait)

    async def _read(self, wait: float) -> Happened:
        fd = self._watch.fileno()
        if fd < 0 or self._stopped:
            return Happened([], ended=True)
        loop = asyncio.get_running_loop()
        self._waits = readable = loop.create_future()
        loop.add_reader(fd, set_done, readable)
        try:
            async with asyncio.timeout(min(wait, LONGEST_WAIT)):
                await readable
        except TimeoutError:
            return Happened([])
        finally:
            self._waits = None
            loop.remove_reader(fd)
            self._close_if_stopped()
        return await self._pool.run(self._read_here, deadline=DEADLINE)

    def _read_here(self) -> Happened:
        with self._use:
            happened = Happened([], ended=True) if self._stopped else self._watch.read()
        self._close_if_stopped()
        return happened

    async def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Close at once, or as soon as what uses it has noticed."""
        self._stopped = True
        if self._waits is not None:
            set_done(self._waits)
        else:
            self._close_if_stopped()

    def _close_if_stopped(self) -> None:
        """Close it, unless a thread uses it, which does so behind its work."""
        if self._stopped and self._use.acquire(blocking=False):
            try:
                self._watch.close()
            finally:
                self._use.release()
