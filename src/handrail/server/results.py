"""Stores the output and the exits of processes that were left, while they run.

A task for each such process takes its output from the log, in the order of its sequence numbers,
and a thread writes it; the process waits for the disk as it would for a reader (``stored`` of
``ChildOutput``).  Beyond the bound the head is kept, and at the end what the ring still has is
stored behind a gap.  When the disk is full that is logged and recorded, and the process goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from handrail.errors import UsageError
from handrail.process.output.backpressure import Window
from handrail.process.output.output_log import RETENTION_BYTES, Chunk
from handrail.results import store
from handrail.results.record import Record, stored_size
from handrail.results.store import About, Exit, ResultFile
from handrail.secret_masks import Secrets, StreamMasker
from handrail.server_settings import ResultBounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from handrail.process.child import Child
    from handrail.process.exit_status import ExitInfo

log = logging.getLogger(__name__)

#: Output that is written at once.
_BATCH = 256 * 1024
#: Output that may wait for the end of what may be a secret.
_MOST_HELD = RETENTION_BYTES // 2
#: How long a process may be silent before the task looks again all the same.
_LOOK_SECONDS = 3600.0
#: Pause before another try at a result that the previous server still has.
_LOCKED_SECONDS = 0.1
_LOCKED_TRIES = 50
#: The room of all results is looked at whenever so much was written, or so much time has passed.
_SWEEP_BYTES = 16 * 1024 * 1024
_SWEEP_SECONDS = 3600.0
_THREADS = 2


def owned(owner: str) -> str:
    """The name under which processes are stored that have outlived their sessions."""
    return f"owner {owner}"


class Results:
    """The results that one server writes."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, bounds: ResultBounds, state_dir: str | None = None
    ) -> None:
        self.loop = loop
        self.bounds = bounds
        self.state_dir = state_dir
        self._storing: dict[Child, _Storing] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._written = 0
        self._swept = 0.0
        self._sweep_timer: asyncio.TimerHandle | None = None

    def begin(self, child: Child, session: str, owner: str) -> None:
        """Store what this process writes from now on, and what is retained of it."""
        if child not in self._storing and self.bounds.each > 0:
            storing = self._storing[child] = _Storing(self, child, session, owner)
            storing.task.add_done_callback(lambda _: self._storing.pop(child, None))

    def has(self, child: Child) -> bool:
        """Whether it is being stored."""
        return child in self._storing

    async def settled(self, children: Iterable[Child], timeout: float) -> None:
        """Wait until these are stored completely, or the time is over."""
        tasks = [self._storing[child].task for child in children if child in self._storing]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def drop(self, session: str, keys: Iterable[str]) -> None:
        """Remove what is stored of these processes of a session: its client has it."""
        wanted = set(keys)
        dropped = [
            (child, storing)
            for child, storing in self._storing.items()
            if storing.about.session == session and child.key in wanted
        ]
        for child, storing in dropped:
            storing.task.cancel()
            child.output.stored = None
        await asyncio.gather(*(one.task for _, one in dropped), return_exceptions=True)
        for key in wanted:
            await self.in_thread(_remove, session, key)

    async def park(self) -> None:
        """Stop writing: another server takes over."""
        for storing in self._storing.values():
            storing.task.cancel()
        tasks = [storing.task for storing in self._storing.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        self.close()

    def close(self) -> None:
        """Release the threads."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def in_thread(self, work: Callable[..., Any], *args: object) -> Any:
        """Do this in a thread of ours: a slow disk holds up nothing else.

        Not given up when the caller is cancelled: it is waited for, since it uses a file.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "results")
        future = self.loop.run_in_executor(self._threads, work, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def has_room(self, size: int) -> bool:
        """Whether all results may grow by this; called in a thread."""
        self._written += size
        now = time.monotonic()
        if self._written < _SWEEP_BYTES and now < self._swept + _SWEEP_SECONDS:
            return True
        self._written, self._swept = 0, now
        return store.sweep(self.bounds) <= self.bounds.total

    def sweep_later(self) -> None:
        """Remove old results now and then, as long as this server runs."""
        self._sweep_timer = self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        task = self.loop.create_task(self.in_thread(store.sweep, self.bounds))
        task.add_done_callback(_noticed)
        self.sweep_later()


class _Storing:
    """One process whose result is being stored."""

    def __init__(self, results: Results, child: Child, session: str, owner: str) -> None:
        self._results = results
        self._child = child
        self._secrets = _secrets(child)
        self._masker: StreamMasker[int] = StreamMasker(self._secrets)
        #: Masked output that is not written: a secret may have begun at its end.
        self._held: list[Record] = []
        self._last = 0  # everything up to this number is written
        self._stored = 0  # bytes of the file
        self._full = False
        self._problem: str | None = None
        self._file: ResultFile | None = None
        words, _ = child.spec.command
        shown = self._secrets.masked_words(words)
        self.about = About(
            session=session,
            owner=owner,
            process_id=child.key,
            argv=[str(word, "utf-8", "replace") for word in shown if isinstance(word, bytes)],
            started_at=child.started_at,
            name=self._secrets.masked_value(child.spec.name),
            labels=self._secrets.masked_value(dict(child.spec.labels)),
            tty=child.spec.tty,
            detach=child.spec.detach,
            state_dir=results.state_dir,
        )
        bounds = results.bounds
        self._head = max(bounds.each - RETENTION_BYTES, bounds.each // 2)
        child.output.stored = Window(child.output.log)
        self.task = results.loop.create_task(self._run())
        self.task.add_done_callback(_noticed)

    async def _run(self) -> None:
        try:
            try:
                if await self._open():
                    await self._store()
            except Exception as error:  # noqa: BLE001 (else the process would wait for ever)
                await self._fail(error)
            self._child.output.stored = None
            self._child.output.resume()
        finally:
            if self._file is not None:
                self._file.close()

    async def _store(self) -> None:
        while True:
            await self._take()
            if self._child.closed:
                break
            await self._child.changed(_LOOK_SECONDS)
        await self._finish()

    async def _open(self) -> bool:
        """Begin or continue the result; False when it is complete."""
        find, about = self._results.in_thread, self.about
        known = await find(store.find, about.session, about.process_id)
        if known is not None and known.about.exit is not None and self._child.closed:
            return False
        for left in reversed(range(_LOCKED_TRIES)):
            try:
                self._file = await self._results.in_thread(ResultFile, self.about)
                break
            except BlockingIOError:
                if not left:
                    raise
                await asyncio.sleep(_LOCKED_SECONDS)
        assert self._file is not None  # noqa: S101 (opened just now)
        self._last, self._stored = self._file.last, self._file.stored
        await self._results.in_thread(self._results.has_room, self._file.beside)
        return True

    async def _take(self) -> None:
        """Write what is new, until there is nothing or no room."""
        output = self._child.output
        while not self._full:
            begun = self._held[-1].first if self._held else self._last
            page = output.log.read(begun, _BATCH)
            if not page.chunks:
                break
            lost, _ = output.log.omitted(begun)
            self._mask(page.chunks, lost)
            if self._ripe:
                await self._write()
        self._let_go()

    def _let_go(self) -> None:
        """Let the process go on, as far as its output is stored or cannot be."""
        output, last = self._child.output, self._last
        if self._full:
            last = output.log.next_seq - 1
        output.store(last)
        if self._child.sink is None:
            output.acknowledge(1, last)  # there is no reader that it would have to wait for

    def _mask(self, chunks: list[Chunk], lost: int) -> None:
        now = time.time()
        for chunk in chunks:
            data = self._child.output.read_chunk(chunk)
            if self._secrets:
                data = self._masker.feed(chunk.stream, data, lost)
            self._held.append(
                Record(chunk.seq, chunk.seq, chunk.size, lost, now, chunk.stream, data)
            )
            lost = 0

    @property
    def _ripe(self) -> bool:
        """Whether what is held can be written: no secret has begun, or it has waited too long."""
        if not self._held:
            return False
        if self._masker.holds:
            if sum(record.size for record in self._held) < _MOST_HELD:
                return False
            self._hold(self._masker.part())
        return True

    def _hold(self, rest: Iterable[tuple[int, bytes]]) -> None:
        """Add what maskers have kept."""
        last, now = self._held[-1].first if self._held else self._last, time.time()
        self._held += [Record(last, last, 0, 0, now, stream, data) for stream, data in rest]

    async def _write(self) -> None:
        """Write what is held, in one piece."""
        file = self._file
        assert file is not None  # noqa: S101 (opened before)
        last = self._held[-1].first
        if self._secrets:
            self._held = [record._replace(last=last) for record in self._held]
        records, self._held = self._held, []
        size = sum(stored_size(len(record.data)) for record in records)
        if self._stored + size > self._head or not await self._results.in_thread(
            self._results.has_room, size
        ):
            self._full = True
            return
        await self._results.in_thread(file.write, records)
        self._stored += size
        self._last = last

    async def _finish(self) -> None:
        """Write the last output behind the gap, and the exit."""
        child, file = self._child, self._file
        assert file is not None  # noqa: S101 (opened before)
        output = child.output
        if not self._full and (self._held or self._masker.holds):
            self._hold(self._masker.finish())
            await self._write()
        if self._full:
            self._held, self._masker = [], StreamMasker(self._secrets)
            chunks = output.log.read(self._last, None).chunks
            room = self._results.bounds.each - self._stored
            first = len(chunks)
            while first and (size := stored_size(chunks[first - 1].size)) <= room:
                first, room = first - 1, room - size
            if chunks := chunks[first:]:
                before = output.log.bytes_through(chunks[0].seq) - chunks[0].size
                self._mask(chunks, before - file.seen)
                self._hold(self._masker.finish())
                last = self._held[-1].first
                tail = [record._replace(last=last) for record in self._held]
                await self._results.in_thread(file.write, tail)
                self._last = last
        output.acknowledge(1, output.log.next_seq - 1)
        about = self._ended()
        with contextlib.suppress(FileNotFoundError):  # it was fetched and removed meanwhile
            await self._results.in_thread(lambda: file.write_about(about, sync=True))

    def _ended(self) -> About:
        from msgspec import structs

        child = self._child
        info, verdict, output = child.exit, child.ending.verdict, child.output.log
        return structs.replace(
            self.about,
            exit=None if info is None else exit_stored(info),
            ended_at=None if info is None else time.time(),
            output_bytes=output.bytes_total,
            omitted=output.bytes_total - (0 if self._file is None else self._file.seen),
            held_open=child.ending.held_open,
            denied=verdict is not None and verdict.denied,
            denials=self._secrets.masked_value(
                [] if verdict is None else [one.members() for one in verdict.denials]
            ),
            problem=self._problem,
        )

    async def _fail(self, error: Exception) -> None:
        """Announce that nothing more is stored of it, and let it go on."""
        why = (getattr(error, "strerror", None) or str(error)) if error.args else repr(error)
        log.error(
            "the result of process %r cannot be stored (%s): its output is kept in memory alone,"
            " %d bytes of it; make room with `handrail prune`",
            self._child.key[:80],
            why,
            RETENTION_BYTES,
        )
        self._full, self._problem = True, why
        await self._try_about()
        while not self._child.closed:
            self._let_go()
            await self._child.changed(_LOOK_SECONDS)
        await self._try_about()

    async def _try_about(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # that was said just now
                await self._results.in_thread(self._file.write_about, self._ended())


def _remove(session: str, key: str) -> None:
    stored = store.find(session, key)
    if stored is not None:
        stored.remove()


def exit_stored(info: ExitInfo) -> Exit:
    """An ``ExitInfo`` as it is stored."""
    used = info.usage
    return Exit(
        kind=info.kind.value,
        code=info.code,
        signal=info.signal,
        core_dumped=info.core_dumped,
        limit=info.limit,
        usage=None
        if used is None
        else (used.wall_ms, used.user_ms, used.system_ms, used.max_rss_bytes),
    )


def _secrets(child: Child) -> Secrets:
    """The secrets of a process; values that no mask can stand for are left out."""
    found: dict[str, str | bytes] = {}
    for name, value in child.spec.secrets:
        try:
            Secrets({name: value})
        except UsageError:
            continue
        found[name] = value
    return Secrets(found)


def _noticed(task: asyncio.Task[Any]) -> None:
    """Report an unexpected exception of a task that no caller awaits."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("results are not stored: %r", error)
