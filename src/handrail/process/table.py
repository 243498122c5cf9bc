"""The processes of one owner: start, find, forget.

An id is reserved while its process is being started, so that nobody else takes it and a
terminate in the meantime is not lost.  A process that has closed stays readable for the
retention time and then its id is free again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, Protocol

from handrail.errors import HandrailError, KeeperLost, ProcessExists, SandboxUnavailable
from handrail.keeper import link, memory
from handrail.process.child import Child, Sink
from handrail.process.launcher import Launcher, Spawned
from handrail.process.spec import ProcessSpec

#: How long a closed process can still be read.
RETENTION_SECONDS = 30.0
#: How often a sandbox is set up before its failure is told.
_MOST_TRIES = 4


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
        self._forgetting: set[asyncio.Task[None]] = set()
        self._haunted: set[int] = set()  # forgotten here, with descendants that live on

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
            if spec.containment is not None:
                spec.containment.abandon()
            raise ProcessExists(f"process {key} already exists")
        inside = spec.containment
        try:
            spawning = self._launcher.spawn(spec)
        except BaseException:
            if inside is not None:
                inside.abandon()
            raise
        if inside is not None:
            inside.sent()
        place = self._entries[key] = Starting()
        task = self._loop.create_task(self._start(key, place, spec, sink, spawning))
        task.add_done_callback(_heard)
        return task

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
            if spec.containment is not None:
                spec, spawned = await self._set_up(key, place, spec, spawned)
        except BaseException:
            del self._entries[key]
            if spec.containment is not None:
                spec.containment.settle(self._loop, _nothing)
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
        # Whoever awaits this task is told two turns of the loop later; what the child does is
        # told after that, so that news of a process never overtake the news of its start.
        later = self._loop.call_soon
        later(later, later, child.begin)
        return child

    async def _set_up(
        self, key: str, place: Starting, spec: ProcessSpec, spawned: Spawned
    ) -> tuple[ProcessSpec, Spawned]:
        """Wait until a sandbox stands; one that met a moving file system is tried again."""
        for _ in range(_MOST_TRIES):
            inside = spec.containment
            if inside is None or await inside.set_up(self._loop):
                return spec, spawned
            said = _last_words(spawned)
            failed = Child(key, spec, spawned, self._launcher, self._loop, None)
            await failed.kill()
            failed.discard()
            if inside.again is None or place.cancelled:
                break
            spec = replace(inside.again(), judge=spec.judge)
            spawning = self._launcher.spawn(spec)
            if spec.containment is not None:
                spec.containment.sent()
            spawned = await spawning
        raise SandboxUnavailable(f"failed to prepare process sandbox: {said or 'it was killed'}")

    def cancel_start(self, place: Starting) -> None:
        """Terminate a process that has not started yet."""
        place.cancelled = True

    def _retire(self, child: Child) -> None:
        self._closed.append((self._loop.time() + self._retention, child))
        if self._timer is None:
            self._timer = self._loop.call_later(self._retention, self._expire)

    def _expire(self) -> None:
        """Free the ids whose time is over; many at once, for each time the keeper is asked."""
        now = self._loop.time()
        over = []
        while self._closed and self._closed[0][0] <= now + 0.001:
            _, child = self._closed.popleft()
            if self._entries.get(child.key) is child:
                del self._entries[child.key]
                over.append(child)
        self._timer = None
        if self._closed:
            pause = max(self._closed[0][0] - now, min(1.0, self._retention / 10))
            self._timer = self._loop.call_later(pause, self._expire)
        if over:
            task = self._loop.create_task(self._forget(over))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _forget(self, over: list[Child]) -> None:
        """Forget children, but not the families of those that have left somebody behind."""
        numbers = {child.number for child in over} | self._haunted
        left = await self._with_orphans()
        for child in over:
            child.discard(forget=child.number not in left)
        for number in self._haunted - left:
            self._launcher.forget(number)
        self._haunted = numbers & left
        if len(over) >= memory.MANY:
            over.clear()
            memory.give_back()

    async def _with_orphans(self) -> set[int]:
        try:
            return set(await self._launcher.orphans())
        except KeeperLost:
            return set()

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
            left = await self._with_orphans()
            # One that has closed and left nobody behind needs no signal.
            ending = [c.end(grace) for c in children if not c.closed or c.number in left]
            await asyncio.gather(*ending, *self._forgetting, return_exceptions=True)
            for number in self._haunted:
                await self._launcher.signal(number, signal.SIGKILL, link.SCOPE_TREE)
                self._launcher.forget(number)
        except KeeperLost:
            pass  # it took its knowledge along; whoever is left is nobody's any more
        finally:
            self._haunted = set()
            for child in children:
                child.discard()
            self._closed.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if len(children) >= memory.MANY:
                children.clear()
                gc.collect()
                memory.give_back()


def _last_words(spawned: Spawned) -> str:
    """What bwrap said to its stderr, or to the terminal."""
    try:
        return (
            os.read(spawned.fds[min(1, len(spawned.fds) - 1)], 4096)
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


def _nothing() -> None:
    """Nobody waits for the end of what never began."""


def _heard(task: asyncio.Task[Child]) -> None:
    """Whoever asked for this child may be gone, and with it whoever hears why it failed."""
    if not task.cancelled():
        task.exception()
