"""One running child: its streams, its stdin, its signals, its end.

How it works.  Readable pipe -> spool -> number -> sink, one step per turn of the loop and
stream, so that no flood holds up another child.  A sink that does not keep up says so
(``sink.ready`` false): then the pipe is left alone until ``resume``, it fills, and the child
waits.  Without a sink (nobody is attached) output goes on into the spool.  A child may ask for
more (``lag.py``): to wait for its reader also then, or never to wait.

The end.  The keeper tells the exit status; whatever is in the pipes by then is numbered
first.  ``closed`` follows when the exit is known and every stream has ended, in this order,
however the news come in.  A descendant that holds a stream open delays the close by
``DRAIN_SECONDS`` at most: then it is reported as held open, and what comes later is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

from handrail import faults
from handrail.errors import KeeperLost, StdinClosed
from handrail.keeper import link
from handrail.process.event_index import EVICTED, HELD_OPEN, LOST, TERMINATED, TIMED_OUT, EventIndex
from handrail.process.lag import Backlog, Window
from handrail.process.launcher import Launcher, Spawned
from handrail.process.output_log import Chunk, OutputLog
from handrail.process.spec import (
    Containment,
    ExitInfo,
    ExitKind,
    OnLag,
    ProcessSpec,
    Usage,
    Verdict,
    exit_from_status,
)
from handrail.process.spool import INDEX_AT, STEP, Spool, Staging
from handrail.process.stdin_ledger import StdinLedger
from handrail.process.stdin_log import StdinLog
from handrail.process.stdin_pump import StdinPump

log = logging.getLogger(__name__)

STDOUT, STDERR, PTY = 0, 1, 2
STREAM_NAMES = ("stdout", "stderr", "pty")
#: Steps taken from each pipe when the exit is known, so that what was written before it is
#: numbered before it; bounded, for a grandchild may go on writing.
_LAST_STEPS = 18
#: How long streams may stay open after the exit before the process is closed without their end.
DRAIN_SECONDS = 2.0
#: What a process that ran out of time gets between TERM and KILL.
TIMEOUT_GRACE = 2.0
#: A terminal hangs up this long before its processes are asked to end, within a quarter of
#: the grace.
HANGUP_SECONDS = 0.2
#: How much of the grace descendants still get once their leader has used its own.
STRAGGLER_SECONDS = 1.0
#: First and longest pause between two looks whether descendants have ended.
_LOOK_SECONDS = 0.005
_LOOK_SECONDS_MOST = 0.1
#: How long a stream waits when there is no room for its spool.
_RETRY_SECONDS = 0.1
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


class Stream:
    """One output of a child: the descriptor it comes from and the spool it goes to."""

    __slots__ = ("ended", "fd", "index", "reading", "spool", "staging")

    def __init__(self, index: int, fd: int) -> None:
        self.index = index
        self.fd = fd
        self.spool: Spool | None = None
        self.staging: Staging | None = None
        self.reading = False
        self.ended = False


_NO_TAGS: dict[str, bytes] = {}
_NO_STREAMS: list[Stream] = []
_NO_LEDGER = StdinLedger()  # of those that take no input, so nothing is ever noted in it


class Child:
    """A process we keep, from its start until it is forgotten."""

    __slots__ = (
        "_backlog",
        "_cause",
        "_discarded",
        "_ending",
        "_index",
        "_launcher",
        "_loop",
        "_pidfd",
        "_pump",
        "_started",
        "_timer",
        "_waiters",
        "_window",
        "blocked",
        "closed_at",
        "exit",
        "held_open",
        "key",
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
        self.blocked = False
        self.held_open = False  # closed although a descendant still has a stream
        self._cause: ExitKind | None = None  # why we end it, if nobody asked us to
        self._ending: asyncio.Task[None] | None = None
        self._discarded = False
        self._timer: asyncio.TimerHandle | None = None
        self.started_at, self._started = time.time(), time.monotonic()
        self.closed_at = 0.0  # by the loop's clock
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
            self.streams = [Stream(PTY, spawned.fds[0])]
            self._pump = StdinPump(spawned.fds[0], loop, None, self._open_input)
        else:
            self.streams = [Stream(STDOUT, spawned.fds[0]), Stream(STDERR, spawned.fds[1])]
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
            self._read_from(stream)
        if self.exit is not None:
            self._maybe_closed()
            self._drain_later()
            return
        self._launcher.watch(self.number, self._exited)
        if self._cause is not None or self.terminated:
            self._ending = self._loop.create_task(self._end_quietly(self._rest_of_grace()))
        elif self.spec.timeout is not None:
            left = max(0.0, self.spec.timeout - self.age)
            self._timer = self._loop.call_later(
                left, self._end_for, ExitKind.TIMED_OUT, TIMEOUT_GRACE
            )

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
        """Seconds since the start."""
        return time.monotonic() - self._started

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
            if stream.spool is not None:
                stream.spool.close()
                stream.spool = None

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

    def close_stdin(self) -> None:
        """End of file for the child: close the pipe, or type the terminal's end-of-file key."""
        if self._pump is None or self._pump.closed:
            return
        if self.spec.tty:
            eof = termios.tcgetattr(self.streams[0].fd)[6][termios.VEOF]
            turn = self._pump.put(eof if isinstance(eof, bytes) else bytes((eof,)), _always)
            if turn is not None:  # it may come too late for a process that ends first
                turn.add_done_callback(_heard)
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
        scope = link.SCOPE_TREE if tree else link.SCOPE_GROUP
        answer = await self._launcher.signal(self.number, number, scope)
        return int(answer.fields[0])

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
        if self.running:
            self._note_terminated()
        await self._launcher.signal(self.number, signal.SIGKILL, link.SCOPE_TREE)

    async def end(self, grace: float) -> None:
        """HUP for a terminal, TERM, and after the grace KILL; returns when it is sent.

        The grace is over early when nobody is left who could use it.
        """
        if grace > 0:
            if self.running:
                self._note_terminated()
            log.info("process %r: asked to end, with %g s of grace", self.key[:80], grace)
            deadline = self._loop.time() + grace
            if self.spec.tty and self.running:
                await self.signal(signal.SIGHUP, tree=True)
                await self._until_exit(self._loop.time() + min(HANGUP_SECONDS, grace / 4))
            await self.signal(signal.SIGTERM, tree=True)
            await self._until_exit(deadline)
            deadline = min(deadline, self._loop.time() + STRAGGLER_SECONDS)
            pause = _LOOK_SECONDS
            while (left := deadline - self._loop.time()) > 0:
                if self.number not in await self._launcher.orphans():
                    break
                await asyncio.sleep(min(left, pause))
                pause = min(2 * pause, _LOOK_SECONDS_MOST)
            if self.running:
                log.info("process %r: did not end within its grace, killed", self.key[:80])
        await self.kill()

    async def _until_exit(self, deadline: float) -> None:
        while self.running and (left := deadline - self._loop.time()) > 0:
            await self.changed(left)

    def _end_for(self, cause: ExitKind, grace: float) -> None:
        """End it for a reason of our own, which its exit will tell."""
        if self.running and self._cause is None:
            self._cause = cause
            self._mark(TIMED_OUT if cause is ExitKind.TIMED_OUT else EVICTED)
            self._ending = self._loop.create_task(self._end_quietly(grace))

    def _rest_of_grace(self) -> float:
        """For one that a server before us was about to end when it died."""
        if self._cause is ExitKind.TIMED_OUT and self.spec.timeout is not None:
            return max(0.0, self.spec.timeout + TIMEOUT_GRACE - self.age)
        # How much it had is not known; one that was to be killed at once is dead already.
        return TIMEOUT_GRACE if self._cause is None else 0.0

    async def _end_quietly(self, grace: float) -> None:
        with contextlib.suppress(KeeperLost):  # then its exit is reported as lost
            await self.end(grace)

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
            self.tags = _NO_TAGS
        if self.blocked:
            self.blocked = False
            for stream in self.streams:
                self._read_from(stream)

    def _read_from(self, stream: Stream) -> None:
        if not stream.reading and not stream.ended:
            stream.reading = True
            self._loop.add_reader(stream.fd, self._readable, stream)

    def _stop_reading(self, stream: Stream) -> None:
        if stream.reading:
            stream.reading = False
            self._loop.remove_reader(stream.fd)

    def _readable(self, stream: Stream) -> None:
        sink = self.sink
        if sink is not None and not sink.ready and self._backlog is None and not self.closed:
            self._block(sink, stream)
            return
        if self._window is not None and not self._window.open:
            self._stop_reading(stream)
            self.blocked = True  # until the reader has acknowledged something
            return
        self._take(stream)
        if stream.ended:
            self._maybe_closed()

    def _block(self, sink: Sink, stream: Stream) -> None:
        self._stop_reading(stream)
        if not self.blocked:
            self.blocked = True
            sink.blocked(self)

    def _take(self, stream: Stream) -> bool:
        """Move one step of output; False when there is none now, or none any more."""
        if self.closed:
            return self._throw_away(stream)
        spool = stream.spool
        if spool is None:
            if _hung_up(stream.fd):
                self._ended(stream)
                return False
            try:
                spool = self._open_spool(stream)
            except OSError:
                return self._retry(stream)
        try:
            if stream.staging is None:
                start = spool.position
                size = spool.fill(stream.fd)
                ended = size == 0
                if size:
                    self._publish(self.log.append(stream.index, start, size))
            else:
                size, ended = stream.staging.fill(stream.fd, STEP)
                while stream.staging.held:
                    start = spool.position
                    moved = stream.staging.drain(spool)
                    self._publish(self.log.append(stream.index, start, moved))
        except BlockingIOError:
            return False
        except OSError:
            return self._retry(stream)
        if ended:
            self._ended(stream)
        return size > 0 and not ended

    def _throw_away(self, stream: Stream) -> bool:
        """Closed with this stream held open: whoever writes to it is not to notice."""
        try:
            size = len(os.read(stream.fd, STEP))
        except BlockingIOError:
            return False
        except OSError:  # a terminal that nobody has open any more
            size = 0
        if size == 0:
            self._ended(stream)
        return size > 0

    def _retry(self, stream: Stream) -> bool:
        """Out of descriptors or memory: the child waits until there are some."""
        self._stop_reading(stream)
        self._loop.call_later(_RETRY_SECONDS, self._read_from, stream)
        return False

    def _open_spool(self, stream: Stream) -> Spool:
        """Make the place where a stream goes; the keeper has it before the first byte does."""
        if faults.armed:
            faults.point("spool.open")
        spool = Spool()
        staging = None
        name = STREAM_NAMES[stream.index].encode()
        try:
            if stream.index == PTY:
                staging = Staging()
                self._launcher.keep(self.number, b"staging", staging.read_end)
            index = EventIndex(spool.fd, INDEX_AT) if self._index is None else self._index
            self._launcher.keep(self.number, b"spool." + name, spool.fd)
        except OSError:
            spool.close()
            if staging is not None:
                staging.close()
            raise
        stream.spool, stream.staging, self._index = spool, staging, index
        return spool

    def _open_input(self) -> StdinLog:
        if faults.armed:
            faults.point("stdin.open")
        log = StdinLog()
        try:
            self._launcher.keep(self.number, b"input", log.fd)
        except OSError:
            log.close()
            raise
        return log

    def _open_index(self) -> EventIndex | None:
        """Where to note something of a process that may not have said anything yet."""
        if self._index is None and not self.closed:
            fd = -1
            try:
                fd = os.memfd_create("handrail-events", os.MFD_CLOEXEC)
                index = EventIndex(fd, 0)
                self._launcher.keep(self.number, b"events", fd)
            except OSError:
                if fd >= 0:
                    os.close(fd)
                return None  # no descriptor free: only a server after a crash misses it
            self._index = index
        return self._index

    def _note_terminated(self) -> None:
        self.terminated = True
        self._mark(TERMINATED)

    def _mark(self, flag: int) -> None:
        index = self._open_index()
        if index is not None:
            index.mark(flag)

    def _publish(self, chunk: Chunk) -> None:
        if faults.armed:
            faults.point("output.taken")
        if self._index is not None:
            self._index.chunk(
                chunk.seq, chunk.stream, chunk.start, chunk.size, self.log.bytes_total
            )
        if faults.armed:
            faults.point("output.numbered")
        sink = self.sink
        if sink is not None and (
            self._backlog is None or self._backlog.keeps_up(self, sink, chunk.seq)
        ):
            sink.output(self, chunk)
        self._wake()
        most = self.spec.limits.output_bytes
        if most is not None and self.log.bytes_total > most:
            self._end_for(ExitKind.EVICTED, 0.0)

    @property
    def _is_behind(self) -> bool:
        """The sink is still to be told of earlier things first."""
        return self._backlog is not None and self._backlog.behind

    def _ended(self, stream: Stream) -> None:
        self._stop_reading(stream)
        stream.ended = True
        if stream.index == PTY and self._pump is not None:
            self._pump.close()
        os.close(stream.fd)
        stream.fd = -1
        if stream.staging is not None:
            stream.staging.close()
            stream.staging = None

    # --- the end -------------------------------------------------------------------------

    def _exited(self, status: int, user_ms: int, system_ms: int, rss: int) -> None:
        inside = self.spec.containment
        if inside is None:
            self._reaped(status, user_ms, system_ms, rss)
            return
        # The end of a sandbox is the end of everybody in it.
        inside.settle(self._loop, lambda: self._reaped(status, user_ms, system_ms, rss))

    def _reaped(self, status: int, user_ms: int, system_ms: int, rss: int) -> None:
        if self._discarded:
            return
        usage = Usage(int(self.age * 1000), user_ms, system_ms, rss)
        self._take_last()
        info = exit_from_status(
            status,
            terminated=self.terminated,
            usage=usage,
            cause=self._cause,
            contained=self.spec.contained,
        )
        self._note_exit(info, status)

    def _take_last(self) -> None:
        """Number what was written before the exit before the exit."""
        if self.sink is None or self.sink.ready or self._backlog is not None:
            for stream in self.streams:
                for _ in range(_LAST_STEPS):
                    if self._window is not None and not self._window.open:
                        break
                    if stream.ended or not self._take(stream):
                        break

    def _note_exit(self, info: ExitInfo, status: int = LOST) -> None:
        self.exit = info
        if self.spec.judge is not None:
            self.verdict = self.spec.judge(info.code, self._texts() if info.code else [])
        self.status = status
        self._stop_timer()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._pump is not None:
            if self.terminated:
                self._pump.close()  # refuses who still waits
            else:
                # As on the wire: a write after the exit is accepted, and its bytes vanish.
                self._pump.abandon()
        seq = self.log.exited()
        # Without an index its number is the first there is, and the close has the second.
        # One that is lost has to be remembered as such.
        if self._index is not None or status == LOST or not all(s.ended for s in self.streams):
            index = self._open_index()
            if index is not None:
                index.exited(seq, status, int(self.age * 1000))
        if faults.armed:
            faults.point("exit.numbered")
        if self.sink is not None and not self._is_behind:
            self.sink.exited(self, seq)
        self._wake()
        self._counted()
        self._maybe_closed()
        self._drain_later()

    def _drain_later(self) -> None:
        # One that asked to lose nothing is closed by the end of its streams alone.
        if not self.closed and self._window is None:
            self._timer = self._loop.call_later(DRAIN_SECONDS, self._drained)

    def _drained(self) -> None:
        """The time for the streams to end is over: close without that."""
        waits = self.sink is not None and not self.sink.ready and self._backlog is None
        for stream in self.streams:
            for _ in range(_LAST_STEPS):
                # What is in the pipe now was written in time.
                if waits or stream.ended or not self._take(stream):
                    break
        if self.closed:
            return
        if waits or self.blocked:
            self._timer = self._loop.call_later(DRAIN_SECONDS, self._drained)
            return
        self.held_open = not all(stream.ended for stream in self.streams)
        self._close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _texts(self) -> list[bytes]:
        """What is retained of the output: each stream, and all as it came."""
        streams: list[list[bytes]] = [[], [], []]
        both: list[bytes] = []
        for chunk in self.log.read(0, None).chunks:
            data = self.read_chunk(chunk)
            streams[chunk.stream].append(data)
            both.append(data)
        return [b"".join(parts) for parts in (*streams, both) if parts]

    def _maybe_closed(self) -> None:
        if self.exit is None or not all(s.ended for s in self.streams):
            return
        if not self.closed:
            self._close()
        elif self.held_open:
            self._launcher.release(self.number)  # now the last of them has let go

    def _close(self) -> None:
        self._stop_timer()
        seq = self.log.closed()
        self.closed_at = self._loop.time()
        if self._index is not None:
            if self.held_open:
                self._index.mark(HELD_OPEN)
            self._index.closed(seq, time.monotonic())
        if faults.armed:
            faults.point("close.numbered")
        if self._pump is not None:
            self._pump.close()
        if not self.held_open:
            self._launcher.release(self.number)
        if self.sink is not None and not self._is_behind:
            self.sink.closed(self, seq)
        self._wake()
        self._shrink()
        if self.on_closed is not None:
            on_closed, self.on_closed = self.on_closed, None
            on_closed(self)

    def _shrink(self) -> None:
        """What is only kept for late readers is kept small; there may be very many."""
        self.spec = self.spec.without_env()
        if not self._is_behind:
            self.tags = _NO_TAGS
        self._pump = None
        self.pid = 0
        self._started = 0.0
        self._close_index()
        if all(stream.spool is None and stream.ended for stream in self.streams):
            self.streams = _NO_STREAMS
        self.log = self.log.settled()

    def keeper_lost(self) -> None:
        """Nobody can tell us its status any more: end it, and say that the exit is not known."""
        if self.exit is not None:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.killpg(self.pid, signal.SIGKILL)  # the leader is dead or dying, not reused yet
        except OSError:
            pass
        inside = self.spec.containment
        if inside is not None:
            inside.settle(self._loop, _nothing)
        self._note_exit(ExitInfo(ExitKind.LOST, None))

    def _close_index(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None

    def _counted(self) -> None:
        if self.on_exit is not None:
            on_exit, self.on_exit = self.on_exit, None
            on_exit(self)

    def discard(self, *, forget: bool = True) -> None:
        """Let go of everything, retained output too.  The child must have ended or been killed.

        Without ``forget`` the keeper goes on knowing its family, so that it can be ended.
        """
        self._discarded = True
        if self.running and self.spec.containment is not None:
            self.spec.containment.settle(self._loop, _nothing)
        for stream in self.streams:
            if not stream.ended:
                self._ended(stream)
            if stream.spool is not None:
                stream.spool.close()
                stream.spool = None
        if self._pump is not None:
            self._pump.close()
        self._close_index()
        self._stop_timer()
        if self._ending is not None:
            self._ending.cancel()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if forget:
            self._launcher.forget(self.number)
        self.sink = None
        self._counted()  # discarded before its exit was known
        self._wake()

    def _wake(self) -> None:
        if self._waiters is not None:
            waiters, self._waiters = self._waiters, None
            for future in waiters:
                _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _heard(turn: asyncio.Future[None]) -> None:
    if not turn.cancelled():
        turn.exception()


def _nothing() -> None:
    """Nobody waits for it."""


def _always() -> bool:
    return True


def _hung_up(fd: int) -> bool:
    """The other end is closed and nothing is left: no spool is needed to learn that."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    events = poll.poll(0)
    return bool(events) and not events[0][1] & select.POLLIN
