"""The processes of one owner: start, find, forget.

An id is reserved while its process is being started, so that no other request takes it and a
terminate in the meantime is not lost.  A process that has closed stays readable for the
retention time and then its id is free again.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol

from handrail.errors import KeeperLost, ProcessExists
from handrail.keeper import malloc_trim, messages
from handrail.process import sandbox_start
from handrail.process.child import Child, Sink
from handrail.process.keeper_client.answers import Spawned
from handrail.process.keeper_client.link import gone
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.output.output_log import RetainedBytes
from handrail.process.recovery import release, start_note
from handrail.process.spawning import abandon, settle, spawn
from handrail.process.spec import ProcessSpec
from handrail.process.starting import StartCancelled, Starting

#: How long a closed process can still be read.
RETENTION_SECONDS = 30.0


class Observer(Protocol):
    """Counts processes; called once for each start and each end."""

    def started(self, child: Child) -> None: ...
    def exited(self, child: Child) -> None: ...


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
        self._owner = owner  # by which the next server finds these processes after a crash
        self._launcher = launcher
        self._loop = loop
        self._retention = retention
        self._observer = observer
        self._entries: dict[str, Child | Starting] = {}
        self._closed: deque[Child] = deque()  # in the order in which they closed
        self._timer: asyncio.TimerHandle | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        #: Tasks of starts, or the keeper's answers to them.
        self._starts: set[asyncio.Future[Any]] = set()
        self._running = 0
        #: How many closed processes, and how many bytes of their output, are kept without a limit
        #: of time; None: the retention time counts.
        self._kept: tuple[int, int] | None = None
        self._retained = RetainedBytes()
        #: Bound once, because each child holds both.
        self._on_exit, self._on_closed = self._exited, self._retire
        #: Forgotten processes whose descendants still run, by the keeper's number of the child.
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

    @property
    def retained(self) -> int:
        """Bytes of output that are retained for all processes together."""
        return self._retained.count

    def _put(self, child: Child) -> None:
        self._entries[child.key] = child
        child.output.log.count_in(self._retained)

    def _remove(self, child: Child) -> None:
        self._entries.pop(child.key, None)
        child.output.log.count_in(None)

    def _refuse_taken(self, key: str, abandon_start: Callable[[], None]) -> None:
        """One id is one process, until it is forgotten."""
        if key in self._entries:
            abandon_start()
            raise ProcessExists(f"process {key} already exists")

    def get(self, key: str) -> Child | Starting | None:
        return self._entries.get(key)

    def start(
        self, key: str, spec: ProcessSpec, sink: Callable[[], Sink | None]
    ) -> asyncio.Task[Child]:
        """Start one process; its id is taken before this returns.

        Raises ProcessExists, SpawnFailed, KeeperLost or StartCancelled; after any of them but
        the first the id is free again.  ``sink`` is called when the child has started, because
        its client may have disconnected meanwhile.  A caller that may be cancelled shields the
        task.
        """
        self._refuse_taken(key, partial(abandon, spec))
        place = Starting()
        spawning = spawn(self._launcher, spec, self._note(key, spec, place))
        self._entries[key] = place
        self._running += 1
        task = self._loop.create_task(self._start(key, place, spec, sink, spawning))
        self._starts.add(task)
        task.add_done_callback(self._heard)
        return task

    def start_plain(
        self, key: str, spec: ProcessSpec, sink: Callable[[], Sink | None]
    ) -> asyncio.Future[Child]:
        """Version of `start` for a process without a sandbox and a managed network; needs no task.

        What the process does is told after the callbacks of the future.
        """
        self._refuse_taken(key, partial(abandon, spec))
        place = Starting()
        number, question = self._launcher.ask(spec, self._note(key, spec, place))
        self._entries[key] = place
        self._running += 1
        future: asyncio.Future[Child] = self._loop.create_future()

        def answered(question: asyncio.Future[messages.Message]) -> None:
            self._starts.discard(question)
            try:
                spawned = self._launcher.answered(spec, number, question)
                child = self._made(key, place, spec, spawned, sink)
            except BaseException as error:  # noqa: BLE001 (raised where the future is read)
                self._give_back(key)
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # its reader may have gone: asyncio would report it
                return
            if place.cancelled:
                self._give_back(key)
                ending = self._loop.create_task(self._cancelled(child))
                self._starts.add(ending)
                ending.add_done_callback(partial(self._passed_on, future))
                return
            self._begun(child)
            if not future.done():
                future.set_result(child)
            self._loop.call_soon(child.begin)

        self._starts.add(question)
        question.add_done_callback(answered)
        return future

    def _passed_on(self, future: asyncio.Future[Child], task: asyncio.Task[Child]) -> None:
        self._heard(task)
        if not future.done() and not task.cancelled() and (error := task.exception()) is not None:
            future.set_exception(error)
            future.exception()

    def start_later(
        self,
        key: str,
        preparing: Coroutine[Any, Any, ProcessSpec],
        sink: Callable[[], Sink | None],
    ) -> asyncio.Task[Child]:
        """Version of `start` for a spec that is still being made; the id is reserved at once.

        Also raises what making it raises.
        """
        self._refuse_taken(key, preparing.close)
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
                abandon(spec)
                raise StartCancelled(f"process {key} start was cancelled")
            spawning = spawn(self._launcher, spec, self._note(key, spec, place))
        except BaseException:
            self._give_back(key)
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
                settle(spec, self._loop)
                raise
            if spec.network is not None:
                spec.network.begin(spawned.child)
            if spec.running_sandbox is not None:
                spec, spawned = await sandbox_start.set_up(
                    self._launcher,
                    self._loop,
                    key,
                    spec,
                    spawned,
                    lambda spec: self._note(key, spec, place),
                    lambda: place.cancelled,
                )
            child = self._made(key, place, spec, spawned, sink)
        except BaseException:
            self._give_back(key)
            raise
        if place.cancelled:
            self._give_back(key)
            await self._cancelled(child)
        self._begun(child)
        # The caller of this task is told two turns of the loop later; what the child does is
        # told after that, so that news of a process never overtake the news of its start.
        soon = self._loop.call_soon
        soon(soon, soon, child.begin)  # in the third turn
        return child

    def _made(
        self,
        key: str,
        place: Starting,
        spec: ProcessSpec,
        spawned: Spawned,
        sink: Callable[[], Sink | None],
    ) -> Child:
        child = Child(key, spec.begun(), spawned, self._launcher, self._loop, sink())
        if spec.network is not None:
            spec.network.began(child)
        if not self._launcher.link.alive and not self._launcher.link.bereft:
            sandbox_start.end(child)  # no keeper would tell us of its exit
            raise gone()
        child.started = place.at
        return child

    def _begun(self, child: Child) -> None:
        self._put(child)
        child.on_closed = self._on_closed
        child.on_exit = self._on_exit
        if self._observer is not None:
            self._observer.started(child)

    def _give_back(self, key: str) -> None:
        """Free the id of a process that is not started."""
        del self._entries[key]
        self._running -= 1

    async def _cancelled(self, child: Child) -> Child:
        """End a process that was terminated before it had started; raises StartCancelled."""
        await sandbox_start.kill(child)
        raise StartCancelled(f"process {child.key} start was cancelled")

    def revive(self, child: Child, closed_ago: float | None) -> None:
        """Add a process of a previous server; ``closed_ago``: how long it has been closed."""
        self._put(child)
        child.on_closed = self._on_closed
        if child.running:
            self._running += 1
            if self._observer is not None:
                self._observer.started(child)
            child.on_exit = self._on_exit
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
        self._put(child)
        child.on_closed = self._on_closed
        if child.running:
            self._running += 1
            child.on_exit = self._on_exit
        if child.closed:
            self._retire(child)

    def give_up(self, child: Child) -> None:
        """Give a child to another table."""
        self._remove(child)
        child.on_closed = None
        if child.running:
            self._running -= 1
            child.on_exit = None
        child.output_tag = None  # it has the key

    def _note(self, key: str, spec: ProcessSpec, place: Starting) -> bytes:
        """Encode the note from which the next server knows this process."""
        return b"" if self._owner is None else start_note.encode(self._owner, key, spec, place.at)

    def cancel_start(self, place: Starting) -> None:
        """Terminate a process that has not started yet."""
        place.cancelled = True

    def keep_closed(self, count: int, size: int) -> None:
        """Keep processes that have closed, the last of them within these bounds, until the end."""
        self._kept = count, size
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def keep_no_longer(self) -> None:
        """Go back to the retention time, for processes that close from now on."""
        self._kept = None

    def _drop_oldest(self) -> None:
        """Forget the processes that closed first, beyond what is kept."""
        if self._kept is None:
            return
        count, size = self._kept
        held = self.retained  # of running ones too; enough to decide, if it is below the bound
        if held > size:
            held = sum(child.output.log.retained for child in self._closed)
        over = []
        for child in list(self._closed)[:-1]:
            if len(self._closed) <= count and held <= size:
                break
            if child.output.unread:
                continue  # it asked to lose nothing, so it stays as long as its session
            self._closed.remove(child)
            held -= child.output.log.retained
            if self._entries.get(child.key) is child:
                del self._entries[child.key]
                over.append(child)
        if over:
            self._forget_soon(over)

    def _retire(self, child: Child, closed_ago: float = 0.0) -> None:
        child.ending.closed_at = self._loop.time() - closed_ago
        self._closed.append(child)
        if self._kept is not None:
            self._drop_oldest()
            return
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
            # It asked to lose nothing, so it stays as long as its session; or it is being stored.
            if child.output.unread or child.output.stored is not None:
                child.ending.closed_at = born + self._retention
                self._closed.append(child)
            else:
                self._remove(child)
                over.append(child)
        self._timer = None
        if self._closed:
            pause = max(self._closed[0].ending.closed_at - born, min(1.0, self._retention / 10))
            self._timer = self._loop.call_later(pause, self._expire)
        if over:
            self._forget_soon(over)

    def _forget_soon(self, over: list[Child]) -> None:
        if all(child.number in self._launcher.over for child in over):
            for child in over:
                child.discard()
            return
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
            self._loop.call_later(malloc_trim.SETTLE_SECONDS, malloc_trim.collect)

    async def is_idle(self) -> bool:
        """Whether nothing is left: no process, and no descendant of a forgotten one."""
        if self._haunted and not self._entries:
            await self._forget([])
        return not self._entries and not self._haunted and not self._forgetting

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
        self._take_out(children)
        try:
            left = set(await self._launcher.orphans())
            # One that has closed, without descendants, needs no signal.
            ending = [c.end(grace) for c in children if not c.closed or c.number in left]
            await asyncio.gather(*ending, *self._forgetting, return_exceptions=True)
            for number in self._haunted:
                await self._launcher.signal(number, signal.SIGKILL, messages.SCOPE_TREE)
                self._launcher.forget(number)
        except KeeperLost:
            pass  # the owner of the keeper restarts it, or gives up
        finally:
            # A keeper that was started meanwhile does not know the processes of this table.
            if self._launcher.link.bereft or self._launcher.mark != keeper:
                release.kill(*children, *self._haunted.values())
            self._haunted = {}
            self._discard(children)
            if len(children) >= malloc_trim.MANY:
                self._loop.call_later(malloc_trim.SETTLE_SECONDS, malloc_trim.collect)

    def end_at_once(self) -> bool:
        """Forget all processes, if each has closed and left none; False: ``end_all`` is needed."""
        children, over = list(self), self._launcher.over
        if self._starts or self._forgetting or self._haunted or len(children) < len(self._entries):
            return False
        if not all(child.closed and child.number in over for child in children):
            return False
        self._take_out(children)
        self._discard(children)
        return True

    def _take_out(self, children: list[Child]) -> None:
        for child in children:
            self._remove(child)
            child.sink = None
            child.output.resume()

    def _discard(self, children: list[Child]) -> None:
        for child in children:
            child.discard()
        self._closed.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
