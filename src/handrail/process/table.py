"""The processes of one owner: start, find, forget.

An id is reserved while its process is being started, so that no other request takes it and a
terminate in the meantime is not lost.  A process that has closed stays readable for the
retention time and then its id is free again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from handrail.errors import (
    HandrailError,
    KeeperLost,
    ProcessExists,
    SandboxUnavailable,
)
from handrail.keeper import malloc_trim, messages
from handrail.process.child import Child, Sink
from handrail.process.keeper_client.launcher import Launcher, Spawned
from handrail.process.keeper_client.link import gone
from handrail.process.recovery import release, start_note
from handrail.process.spec import ProcessSpec

#: How long a closed process can still be read.
RETENTION_SECONDS = 30.0
#: Their memory is given back when what was in flight with them has settled.
_TIDY_SECONDS = 0.25


class Observer(Protocol):
    """Counts processes; called once for each start and each end."""

    def started(self, child: Child) -> None: ...
    def exited(self, child: Child) -> None: ...


class StartCancelled(HandrailError):
    """The process was terminated before it had started."""


class Starting:
    """An id whose process is being started."""

    __slots__ = ("at", "cancelled")

    def __init__(self) -> None:
        self.at = (time.time(), time.monotonic())
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
        owner: str | None = None,
    ) -> None:
        self._owner = owner  # the owner that finds these processes after a crash
        self._launcher = launcher
        self._loop = loop
        self._retention = retention
        self._observer = observer
        self._entries: dict[str, Child | Starting] = {}
        self._closed: deque[Child] = deque()  # in the order of their time
        self._timer: asyncio.TimerHandle | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[Child]] = set()
        self._running = 0
        #: Forgotten here, with descendants that live on; by the keeper's number.
        self._haunted: dict[int, Child] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Child]:
        return iter([e for e in self._entries.values() if isinstance(e, Child)])

    @property
    def starting(self) -> bool:
        return any(isinstance(entry, Starting) for entry in self._entries.values())

    @property
    def running(self) -> int:
        """How many are starting, or have not exited."""
        return self._running

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
            _abandon(spec)
            raise ProcessExists(f"process {key} already exists")
        place = Starting()
        spawning = spawn(self._launcher, spec, self._note(key, spec, place))
        self._entries[key] = place
        self._running += 1
        task = self._loop.create_task(self._start(key, place, spec, sink, spawning))
        self._starts.add(task)
        task.add_done_callback(self._heard)
        return task

    def start_later(
        self,
        key: str,
        preparing: Coroutine[Any, Any, ProcessSpec],
        sink: Callable[[], Sink | None],
    ) -> asyncio.Task[Child]:
        """Version of `start` for a spec that is still being made; the id is reserved at once.

        Also raises what making it raises.
        """
        if key in self._entries:
            preparing.close()
            raise ProcessExists(f"process {key} already exists")
        place = self._entries[key] = Starting()
        self._running += 1
        task = self._loop.create_task(self._prepare(key, place, preparing, sink))
        self._starts.add(task)
        task.add_done_callback(self._heard)
        return task

    async def _prepare(
        self,
        key: str,
        place: Starting,
        preparing: Coroutine[Any, Any, ProcessSpec],
        sink: Callable[[], Sink | None],
    ) -> Child:
        try:
            spec = await preparing
            if place.cancelled:
                _abandon(spec)
                raise StartCancelled(f"process {key} start was cancelled")
            spawning = spawn(self._launcher, spec, self._note(key, spec, place))
        except BaseException:
            del self._entries[key]
            self._running -= 1
            raise
        return await self._start(key, place, spec, sink, spawning)

    def _heard(self, task: asyncio.Task[Child]) -> None:
        """Retrieve the exception of a start whose caller may have gone: asyncio would report it."""
        self._starts.discard(task)
        if not task.cancelled():
            task.exception()

    async def started(self) -> None:
        """Wait for the starts in progress; they fail when there is no keeper."""
        if self._starts:
            await asyncio.wait(self._starts)

    async def _start(
        self,
        key: str,
        place: Starting,
        spec: ProcessSpec,
        sink: Callable[[], Sink | None],
        spawning: Coroutine[Any, Any, Spawned],
    ) -> Child:
        try:
            try:
                spawned = await spawning
            except BaseException:
                _settle(spec, self._loop)
                raise
            if spec.running_sandbox is not None:
                spec, spawned = await self._set_up(key, place, spec, spawned)
            if spec.sent is not None:
                spec = replace(spec, sent=None, again=None)  # they keep the plan in memory
            child = Child(key, spec, spawned, self._launcher, self._loop, sink())
            if not self._launcher.link.alive and not self._launcher.link.bereft:
                _end(child)  # no keeper would tell us of its exit
                raise gone()
        except BaseException:
            del self._entries[key]
            self._running -= 1
            raise
        child.started = place.at
        if place.cancelled:
            del self._entries[key]
            self._running -= 1
            await _kill(child)
            raise StartCancelled(f"process {key} start was cancelled")
        self._entries[key] = child
        child.on_closed = self._retire
        child.on_exit = self._exited
        if self._observer is not None:
            self._observer.started(child)
        # The caller of this task is told two turns of the loop later; what the child does is
        # told after that, so that news of a process never overtake the news of its start.
        later = self._loop.call_soon
        later(later, later, child.begin)
        return child

    def revive(self, child: Child, closed_ago: float | None) -> None:
        """Add a process of a previous server; ``closed_ago``: how long it has been closed."""
        self._entries[child.key] = child
        child.on_closed = self._retire
        if child.running:
            self._running += 1
            if self._observer is not None:
                self._observer.started(child)
            child.on_exit = self._exited
        if closed_ago is not None:
            self._retire(child, closed_ago)
        if closed_ago is None or child.ending.held_open:
            child.go_on()

    def _exited(self, child: Child) -> None:
        self._running -= 1
        if self._observer is not None:
            self._observer.exited(child)

    def adopt(self, child: Child) -> None:
        """Take a child over from another table; it gets a new id where its own is taken."""
        key, number = child.key, 1
        while child.key in self._entries:
            number += 1
            child.key = f"{key} ({number})"
        self._entries[child.key] = child
        child.on_closed = self._retire
        if child.running:
            self._running += 1
            child.on_exit = self._exited
        if child.closed:
            self._retire(child)

    def give_up(self, child: Child) -> None:
        """Give a child to another table."""
        del self._entries[child.key]
        child.on_closed = None
        if child.running:
            self._running -= 1
            child.on_exit = None
        child.tags = {}  # they hold the key

    def _note(self, key: str, spec: ProcessSpec, place: Starting) -> bytes:
        """The note about it for the next server."""
        return b"" if self._owner is None else start_note.encode(self._owner, key, spec, place.at)

    async def _set_up(
        self, key: str, place: Starting, spec: ProcessSpec, spawned: Spawned
    ) -> tuple[ProcessSpec, Spawned]:
        """Wait until a sandbox is set up; retried when the file system changed meanwhile.

        Lets go of everything when it raises.
        """
        while True:
            inside = spec.running_sandbox
            if inside is None:
                return spec, spawned
            try:
                if spawned.listener >= 0:
                    keep = partial(self._launcher.keep, spawned.child, release.CALLS)
                    inside.attend(spawned.listener, self._loop, keep)
                if await inside.set_up(self._loop):
                    return spec, spawned
                said = _last_words(spawned)
            except BaseException:
                _end(Child(key, spec, spawned, self._launcher, self._loop, None))
                raise
            await _kill(Child(key, spec, spawned, self._launcher, self._loop, None))
            problem = SandboxUnavailable(said or "it was killed")
            if spec.again is None or place.cancelled:
                raise problem
            spec = spec.again(problem)
            try:
                spawned = await spawn(self._launcher, spec, self._note(key, spec, place))
            except BaseException:
                _settle(spec, self._loop)
                raise

    def cancel_start(self, place: Starting) -> None:
        """Terminate a process that has not started yet."""
        place.cancelled = True

    def _retire(self, child: Child, closed_ago: float = 0.0) -> None:
        child.ending.closed_at = self._loop.time() - closed_ago
        self._closed.append(child)
        left = max(0.0, self._retention - closed_ago)
        if self._timer is None:
            self._timer = self._loop.call_later(left, self._expire)

    def _expire(self) -> None:
        """Free the ids whose time is over; many at once, for each costs a request to the keeper."""
        born = self._loop.time() - self._retention
        over = []
        for _ in range(len(self._closed)):
            child = self._closed[0]
            if child.ending.closed_at > born + 0.001:
                break
            self._closed.popleft()
            if self._entries.get(child.key) is not child:
                continue
            if child.output.unread:  # it asked to lose nothing, so it stays as long as its session
                child.ending.closed_at = born + self._retention
                self._closed.append(child)
            else:
                del self._entries[child.key]
                over.append(child)
        self._timer = None
        if self._closed:
            pause = max(self._closed[0].ending.closed_at - born, min(1.0, self._retention / 10))
            self._timer = self._loop.call_later(pause, self._expire)
        if over:
            task = self._loop.create_task(self._forget(over))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _forget(self, over: list[Child]) -> None:
        """Forget children, but keep the trees of those whose descendants live on."""
        known = self._haunted | {child.number: child for child in over}
        try:
            left = set(await self._launcher.orphans())
        except KeeperLost:
            left = set(known)  # unknown: keep all
        for child in over:
            child.discard(forget=child.number not in left)
        for number in self._haunted.keys() - left:
            self._launcher.forget(number)
        self._haunted = {number: child for number, child in known.items() if number in left}
        if len(over) >= malloc_trim.MANY:
            self._loop.call_later(_TIDY_SECONDS, _tidy)

    def left_behind(self, key: str | None = None) -> list[Child]:
        """Processes that were forgotten and whose descendants live on."""
        return [child for child in self._haunted.values() if key in (None, child.key)]

    async def end_all(self, grace: float = 0.0) -> None:
        """End every process with its whole tree, and forget them all."""
        children = list(self)
        keeper = self._launcher.mark
        for entry in self._entries.values():
            if isinstance(entry, Starting):
                entry.cancelled = True
        for child in children:
            self._entries.pop(child.key, None)
            child.sink = None
            child.output.resume()
        try:
            left = set(await self._launcher.orphans())
            # One that has closed, without descendants, needs no signal.
            ending = [c.end(grace) for c in children if not c.closed or c.number in left]
            await asyncio.gather(*ending, *self._forgetting, return_exceptions=True)
            for number in self._haunted:
                await self._launcher.signal(number, signal.SIGKILL, messages.SCOPE_TREE)
                self._launcher.forget(number)
        except KeeperLost:
            pass
        finally:
            # A keeper that has come meanwhile was not told of those that we are about to forget.
            if self._launcher.link.bereft or self._launcher.mark != keeper:
                release.kill(*children, *self._haunted.values())
            self._haunted = {}
            for child in children:
                child.discard()
            self._closed.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if len(children) >= malloc_trim.MANY:
                self._loop.call_later(_TIDY_SECONDS, _tidy)


def spawn(launcher: Launcher, spec: ProcessSpec, note: bytes = b"") -> Coroutine[Any, Any, Spawned]:
    """Ask the keeper for a child, and close the descriptors of its sandbox.

    Raises SpawnFailed or KeeperLost, and the sandbox is given up then.
    """
    try:
        spawning = launcher.spawn(spec, note)
    except BaseException:
        _abandon(spec)
        raise
    if spec.sent is not None:
        spec.sent()
    return spawning


def _abandon(spec: ProcessSpec) -> None:
    """Release the sandbox of a child that is not started."""
    if spec.sent is not None:
        spec.sent()
    if spec.running_sandbox is not None:
        spec.running_sandbox.abandon()


def _tidy() -> None:
    """Return freed memory to the system after many processes have ended."""
    gc.collect()
    malloc_trim.give_back()


def _last_words(spawned: Spawned) -> str:
    """What bwrap wrote to its stderr, or to the terminal."""
    try:
        return (
            os.read(spawned.fds[min(1, len(spawned.fds) - 1)], 4096)
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


async def _kill(child: Child) -> None:
    """Kill an unwanted child, and release it."""
    try:
        await child.ending.kill()
    except BaseException:
        _end(child)
        raise
    child.discard()


def _end(child: Child) -> None:
    """Version of `_kill` that does not wait, with or without a keeper."""
    if child.launcher.link.alive:
        child.launcher.kill(child.number)
    else:
        release.kill(child)
    child.discard()


def _settle(spec: ProcessSpec, loop: asyncio.AbstractEventLoop) -> None:
    """Release a sandbox that was not set up."""
    if spec.running_sandbox is not None:
        spec.running_sandbox.settle(loop, _nothing)


def _nothing() -> None:
    """Do nothing: the process never began."""
