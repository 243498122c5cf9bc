"""The processes of one owner: start, find, forget.

An id is reserved while its process is being started, so that nobody else takes it and a
terminate in the meantime is not lost.  A process that has closed stays readable for the
retention time and then its id is free again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from handrail.errors import HandrailError, ProcessExists
from handrail.process.child import Child, Sink
from handrail.process.launcher import Launcher, Spawned
from handrail.process.spec import ProcessSpec

#: How long a closed process can still be read.
RETENTION_SECONDS = 30.0


class Observer(Protocol):
    """Who counts processes; told of each start and each end once."""

    def started(self, child: Child) -> None: ...
    def exited(self, child: Child) -> None: ...


class StartCancelled(HandrailError):
    """The process was terminated before it had started."""


class Starting:
    """An id whose process is on its way."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


class ProcessTable:
    """Children by the id their owner gave them."""

    def __init__(
        self,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
        *,
        retention: float = RETENTION_SECONDS,
        observer: Observer | None = None,
    ) -> None:
        self._launcher = launcher
        self._loop = loop
        self._retention = retention
        self._observer = observer
        self._entries: dict[str, Child | Starting] = {}
        self._closed: deque[tuple[float, Child]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Child]:
        return iter([e for e in self._entries.values() if isinstance(e, Child)])

    def get(self, key: str) -> Child | Starting | None:
        return self._entries.get(key)

    def start(
        self, key: str, spec: ProcessSpec, sink: Callable[[], Sink | None]
    ) -> asyncio.Task[Child]:
        """Start one process; its id is taken before this returns.

        Raises ProcessExists, SpawnFailed, KeeperLost or StartCancelled; after any of them but
        the first the id is free again.  ``sink`` is asked when the child is there, for its
        owner may have gone meanwhile.  A caller that may be cancelled shields the task.
        """
        if key in self._entries:
            raise ProcessExists(f"process {key} already exists")
        spawning = self._launcher.spawn(spec)
        place = self._entries[key] = Starting()
        return self._loop.create_task(self._start(key, place, spec, sink, spawning))

    async def _start(
        self,
        key: str,
        place: Starting,
        spec: ProcessSpec,
        sink: Callable[[], Sink | None],
        spawning: Coroutine[Any, Any, Spawned],
    ) -> Child:
        try:
            spawned = await spawning
        except BaseException:
            del self._entries[key]
            raise
        child = Child(key, spec, spawned, self._launcher, self._loop, sink())
        if place.cancelled:
            del self._entries[key]
            try:
                await child.kill()
            finally:
                child.discard()
            raise StartCancelled(f"process {key} start was cancelled")
        self._entries[key] = child
        child.on_closed = self._retire
        if self._observer is not None:
            self._observer.started(child)
            child.on_exit = self._observer.exited
        child.begin()
        return child

    def cancel_start(self, place: Starting) -> None:
        """Terminate a process that has not started yet."""
        place.cancelled = True

    def _retire(self, child: Child) -> None:
        self._closed.append((self._loop.time() + self._retention, child))
        if self._timer is None:
            self._timer = self._loop.call_later(self._retention, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        while self._closed and self._closed[0][0] <= now + 0.001:
            _, child = self._closed.popleft()
            if self._entries.get(child.key) is child:
                del self._entries[child.key]
                child.discard()
        self._timer = None
        if self._closed:
            self._timer = self._loop.call_later(self._closed[0][0] - now, self._expire)

    async def end_all(self, grace: float = 0.0) -> None:
        """End every process with its whole tree, and forget them all."""
        children = list(self)
        for entry in self._entries.values():
            if isinstance(entry, Starting):
                entry.cancelled = True
        for child in children:
            self._entries.pop(child.key, None)
            child.sink = None
            child.resume()
        try:
            await asyncio.gather(*(child.end(grace) for child in children), return_exceptions=True)
        finally:
            for child in children:
                child.discard()
            self._closed.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
