"""One running child: its streams, its stdin, its signals.

How it works.  Readable pipe -> spool -> number -> sink, one step at a time
(``process/output/stream.py``).  A sink that does not keep up says so (``sink.ready`` false): then
the pipe is left alone until ``resume``, it fills, and the child waits.  Without a sink (nobody is
attached) output goes on into the spool.  A child may ask for more
(``process/output/backpressure.py``): to wait for its reader also then, or never to wait.  How it is
asked to end is in ``graceful_end.py``, what follows its exit in ``exit_and_close.py``.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

from handrail import fault_points, process
from handrail.errors import KeeperLost, StdinClosed
from handrail.keeper import messages
from handrail.process import exit_and_close, graceful_end
from handrail.process.keeper_client.launcher import Launcher, Spawned
from handrail.process.output import event_record
from handrail.process.output.backpressure import Backlog, Window
from handrail.process.output.event_index import EVICTED, EventIndex
from handrail.process.output.output_log import Chunk, OutputLog
from handrail.process.output.stream import PTY, STDERR, STDOUT, Stream
from handrail.process.recovery import release
from handrail.process.spec import (
    Containment,
    ExitInfo,
    ExitKind,
    OnLag,
    ProcessSpec,
    Verdict,
)
from handrail.process.stdin.ledger import StdinLedger
from handrail.process.stdin.log import StdinLog
from handrail.process.stdin.pump import StdinPump

log = logging.getLogger(__name__)

#: How long a signal waits for a sandbox that is being set up, and how often it looks.
_SETUP_SECONDS = 2.0
_SETUP_PAUSE = 0.005


class Sink(Protocol):
    """Who wants to know what a child does, as it happens."""

    @property
    def ready(self) -> bool:
        """Whether output is wanted now; if not, ``Child.resume`` is called later."""

    def output(self, child: Child, chunk: Chunk) -> None: ...
    def exited(self, child: Child, seq: int) -> None: ...
    def closed(self, child: Child, seq: int) -> None: ...
    def blocked(self, child: Child) -> None:
        """The child has output that was left in its pipe because ``ready`` was false."""


_NO_LEDGER = StdinLedger()  # of those that take no input, so nothing is ever noted in it


class Child:
    """A process we keep, from its start until it is forgotten."""

    __slots__ = (
        "_backlog",
        "_cause",
        "_discarded",
        "_due",
        "_ending",
        "_index",
        "_launcher",
        "_loop",
        "_pidfd",
        "_pump",
        "_seeking",
        "_started",
        "_timer",
        "_waiters",
        "_window",
        "blocked",
        "closed_at",
        "ended_at",
        "exit",
        "held_open",
        "key",
        "killed",
        "ledger",
        "log",
        "number",
        "on_closed",
        "on_exit",
        "pid",
        "sink",
        "spec",
        "started_at",
        "status",
        "streams",
        "tags",
        "terminated",
        "verdict",
    )

    def __init__(
        self,
        key: str,
        spec: ProcessSpec,
        spawned: Spawned,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
        sink: Sink | None,
    ) -> None:
        self.key = key
        self.spec = spec
        self.number = spawned.child
        self.pid = spawned.pid
        self.log = OutputLog()
        self.ledger = StdinLedger() if spec.tty or spec.pipe_stdin else _NO_LEDGER
        self.sink = sink
        self.exit: ExitInfo | None = None
        self.verdict: Verdict | None = None  # of a contained child that has exited
        self.status: int | None = None  # the exit as it was told, for the next keeper
        self.terminated = False
        self.killed = False  # by a server before us
        self.blocked = False
        self.held_open = False  # closed although a descendant still has a stream
        self._cause: ExitKind | None = None  # why we end it, if nobody asked us to
        self._due: messages.Due | None = None  # of one that is asked to end
        self._ending: asyncio.Task[None] | None = None
        self._seeking: asyncio.Task[None] | None = None  # how it ended, without its keeper
        self._discarded = False
        self._timer: asyncio.TimerHandle | None = None
        self.started_at, self._started = time.time(), time.monotonic()
        self.closed_at = 0.0  # by the loop's clock
        self.ended_at: float | None = None  # monotonic; of one that ended before we were there
        self.on_exit: Callable[[Child], None] | None = None
        self.on_closed: Callable[[Child], None] | None = None
        self.tags: dict[str, bytes] = {}  # for whoever formats messages about this child
        self._pidfd = spawned.pidfd
        self._launcher = launcher
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] | None = None
        self._index: EventIndex | None = None  # made when there is something to remember
        self._pump: StdinPump | None = None
        self._window = Window(self.log) if spec.on_lag is OnLag.BLOCK else None
        self._backlog = Backlog(self.log) if spec.on_lag is OnLag.DROP else None
        if spec.tty:
            self.streams = [Stream(self, PTY, spawned.fds[0])]
            self._pump = StdinPump(spawned.fds[0], loop, None, self._open_input)
        else:
            self.streams = [
                Stream(self, STDOUT, spawned.fds[0]),
                Stream(self, STDERR, spawned.fds[1]),
            ]
            if spec.pipe_stdin:
                self._pump = StdinPump(spawned.fds[2], loop, self._stdin_closed, self._open_input)
        if self._pump is not None:
            self.ledger.store = self._pump.store

    def begin(self) -> None:
        """Start reading, and hear of the exit."""
        if self._pidfd >= 0:  # else discarded meanwhile
            self.go_on()

    def go_on(self) -> None:
        """The same for one that a server before us has begun with, and that may have ended."""
        for stream in self.streams:
            stream.read()
        if self.exit is not None:
            exit_and_close.maybe_closed(self)
            exit_and_close.drain_later(self)
            return
        self._launcher.watch(self.number, self._exited)
        if self._cause is not None or (self.terminated and self._due is None):
            # How much grace it had is known only of one that was to be killed at once.
            left = 0.0 if self.killed or self._cause is not None else process.TIMEOUT_GRACE
            self._ending = self._loop.create_task(graceful_end.end_quietly(self, left))

    # --- state ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self.exit is None

    @property
    def started(self) -> tuple[float, float]:
        """When it was started, by the clock on the wall and the monotonic one."""
        return self.started_at, self._started

    @started.setter
    def started(self, at: tuple[float, float]) -> None:
        self.started_at, self._started = at

    @property
    def age(self) -> float:
        """Seconds since the start; of one that had ended before we were there, until then."""
        until = time.monotonic() if self.ended_at is None else self.ended_at
        return max(0.0, until - self._started)

    @property
    def closed(self) -> bool:
        return self.log.closed_seq is not None

    def read_chunk(self, chunk: Chunk) -> bytes:
        """The bytes of a retained chunk."""
        spool = self.streams[chunk.stream if chunk.stream != PTY else 0].spool
        return spool.read(chunk.start, chunk.size) if spool is not None else b""

    def drop_output(self) -> None:
        """Retained output is wanted by nobody: let go of it, and of its descriptors."""
        for stream in self.streams:
            stream.drop()

    async def changed(self, timeout: float) -> None:
        """Return when anything happens to this child, or after ``timeout`` seconds."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(future)
        timer = self._loop.call_later(timeout, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            if self._waiters is not None and future in self._waiters:
                self._waiters.remove(future)

    # --- input -----------------------------------------------------------------------------

    @property
    def takes_input(self) -> bool:
        return self._pump is not None and not self._pump.closed

    def write(self, data: bytes, accept: Callable[[], bool]) -> asyncio.Future[None] | None:
        """Queue bytes for stdin; see StdinPump.put."""
        if self._pump is None:
            raise StdinClosed("this process was started without a stdin")
        return self._pump.put(data, accept)

    def input_room(self, size: int) -> int | None:
        """None when that many bytes would be taken now, or input is closed; else how many."""
        pump = self._pump
        return None if pump is None or pump.closed or pump.has_room(size) else pump.free

    def close_stdin(self) -> None:
        """End of file for the child: close the pipe, or type the terminal's end-of-file key."""
        if self._pump is None or self._pump.closed:
            return
        if self.spec.tty:
            self._pump.type_end()
        else:
            self._pump.finish()

    def _stdin_closed(self, fd: int) -> None:
        os.close(fd)
        if not self.closed:
            self._launcher.drop(self.number, b"stdin")

    def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size; the kernel tells the foreground job by SIGWINCH."""
        stream = self.streams[0] if self.streams else None
        if stream is not None and not stream.ended:
            fcntl.ioctl(stream.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    # --- signals -----------------------------------------------------------------------------

    async def signal(self, number: int, *, tree: bool = False) -> int:
        """Signal the process group, or every descendant; how many were reached."""
        if not self.running and not tree:
            return 0
        inside = self.spec.containment
        if inside is not None and self.running and number != signal.SIGKILL:
            return await self._signal_inside(inside, number, tree)
        scope = messages.SCOPE_TREE if tree else messages.SCOPE_GROUP
        answer = await self._launcher.signal(self.number, number, scope)
        return messages.Count.unpack(answer.fields).count

    async def _signal_inside(self, inside: Containment, number: int, tree: bool) -> int:
        """What holds the command would die of the signal, and everybody inside with it."""
        deadline = self._loop.time() + _SETUP_SECONDS
        while self.running:
            reached = inside.signal(number, tree=tree)
            if reached or self._loop.time() > deadline:
                return reached
            await self.changed(_SETUP_PAUSE)  # it is being set up
        return 0

    async def kill(self) -> None:
        """SIGKILL to every descendant, now."""
        try:
            if not self._launcher.link.bereft:
                self.terminated |= self.running  # the keeper tells the next server
                await self._launcher.signal(self.number, signal.SIGKILL, messages.SCOPE_TREE)
                return
        except KeeperLost:
            if not self._launcher.link.bereft:
                raise
        if self.running:
            event_record.note_terminated(self)
        release.kill(self)

    @property
    def due(self) -> messages.Due | None:
        """When it is to end, as far as that is known."""
        return graceful_end.timeout(self) if self._due is None else self._due

    def ask_to_end(self, seconds: float) -> None:
        """HUP for a terminal, TERM, and after that grace KILL, whatever becomes of us."""
        log.info("process %r: asked to end, with %g s of grace", self.key[:80], seconds)
        self._due = graceful_end.asked(self, seconds)
        self._launcher.end_by(self._due)
        if self.running:
            event_record.note_terminated(self)

    async def end(self, seconds: float) -> None:
        """The same; returns when all have ended or the KILL is sent."""
        if seconds > 0:
            self.ask_to_end(seconds)
            await self.see_out(seconds)
        else:
            await self.kill()

    async def see_out(self, seconds: float) -> None:
        """Wait for one that was asked to end, and kill it when its grace is over."""
        await graceful_end.see_out(self, seconds)
        await self.kill()

    def _evict(self) -> None:
        """It has written more than it may."""
        if self.running and self._cause is None:
            self._cause = ExitKind.EVICTED
            event_record.mark(self, EVICTED)
            self._ending = self._loop.create_task(graceful_end.end_quietly(self, 0.0))

    # --- output ------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether it waits for its reader, however long, so that nothing is ever dropped."""
        return self._window is not None

    @property
    def unread(self) -> bool:
        """It waits for its reader, and the reader does not have everything yet."""
        return self._window is not None and self._window.acknowledged < self.log.next_seq - 1

    @property
    def gap(self) -> tuple[int, int] | None:
        """Bytes and chunks that were dropped before the chunk that is being published."""
        return None if self._backlog is None else self._backlog.gap

    def acknowledge(self, first: int, last: int) -> None:
        """The reader has everything with these numbers."""
        window = self._window
        if window is not None and window.acknowledge(first, last) and self.blocked:
            self.resume()

    def resume(self) -> None:
        """The sink wants output again, or there is no sink any more."""
        if self._backlog is not None and self._backlog.catch_up(self) and self.closed:
            self.tags = exit_and_close.NO_TAGS
        if self.blocked:
            self.blocked = False
            for stream in self.streams:
                stream.read()

    def _readable(self, stream: Stream) -> None:
        sink = self.sink
        if sink is not None and not sink.ready and self._backlog is None and not self.closed:
            self._block(sink, stream)
            return
        if self._window is not None and not self._window.open:
            stream.stop_reading()
            self.blocked = True  # until the reader has acknowledged something
            return
        stream.take()
        if stream.ended:
            exit_and_close.maybe_closed(self)

    def _block(self, sink: Sink, stream: Stream) -> None:
        stream.stop_reading()
        if not self.blocked:
            self.blocked = True
            sink.blocked(self)

    def _open_input(self) -> StdinLog:
        if fault_points.armed:
            fault_points.point("stdin.open")
        log = StdinLog()
        try:
            self._launcher.keep(self.number, b"input", log.fd)
        except OSError:
            log.close()
            raise
        return log

    def _publish(self, chunk: Chunk) -> None:
        if fault_points.armed:
            fault_points.point("output.taken")
        if self._index is not None:
            self._index.chunk(
                chunk.seq, chunk.stream, chunk.start, chunk.size, self.log.bytes_total
            )
        if fault_points.armed:
            fault_points.point("output.numbered")
        sink = self.sink
        if sink is not None and (
            self._backlog is None or self._backlog.keeps_up(self, sink, chunk.seq)
        ):
            sink.output(self, chunk)
        self._wake()
        most = self.spec.limits.output_bytes
        if most is not None and self.log.bytes_total > most:
            self._evict()

    @property
    def _is_behind(self) -> bool:
        """The sink is still to be told of earlier things first."""
        return self._backlog is not None and self._backlog.behind

    # --- the end -------------------------------------------------------------------------

    def _exited(self, status: int, *used: int) -> None:
        inside = self.spec.containment
        if inside is None:
            exit_and_close.reaped(self, status, *used)
            return
        # The end of a sandbox is the end of everybody in it.
        inside.settle(self._loop, lambda: exit_and_close.reaped(self, status, *used))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _counted(self) -> None:
        if self.on_exit is not None:
            on_exit, self.on_exit = self.on_exit, None
            on_exit(self)

    def _wake(self) -> None:
        if self._waiters is not None:
            waiters, self._waiters = self._waiters, None
            for future in waiters:
                _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
