"""One running child: its streams, its stdin, its signals, its end.

How it works.  Readable pipe -> spool -> number -> sink, one step per turn of the loop and
stream, so that no flood holds up another child.  A sink that does not keep up says so
(``sink.ready`` false): then the pipe is left alone until ``resume``, it fills, and the child
waits.  Without a sink (nobody is attached) output goes on into the spool.

The end.  The keeper tells the exit status; whatever is in the pipes by then is numbered
first.  ``closed`` follows when the exit is known and every stream has ended, in this order,
however the news come in.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

from handrail.errors import StdinClosed
from handrail.keeper import link
from handrail.process.launcher import Launcher, Spawned
from handrail.process.output_log import Chunk, OutputLog
from handrail.process.spec import (
    Containment,
    ExitInfo,
    ExitKind,
    ProcessSpec,
    Usage,
    Verdict,
    exit_from_status,
)
from handrail.process.spool import STEP, Spool, Staging
from handrail.process.stdin_ledger import StdinLedger
from handrail.process.stdin_pump import StdinPump

STDOUT, STDERR, PTY = 0, 1, 2
STREAM_NAMES = ("stdout", "stderr", "pty")
#: Steps taken from each pipe when the exit is known, so that what was written before it is
#: numbered before it; bounded, for a grandchild may go on writing.
_LAST_STEPS = 18
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


class Child:
    """A process we keep, from its start until it is forgotten."""

    __slots__ = (
        "_launcher",
        "_loop",
        "_pidfd",
        "_pump",
        "_started",
        "_waiters",
        "blocked",
        "exit",
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
        self.ledger = StdinLedger()
        self.sink = sink
        self.exit: ExitInfo | None = None
        self.verdict: Verdict | None = None  # of a contained child that has exited
        self.terminated = False
        self.blocked = False
        self.started_at = time.time()
        self.on_exit: Callable[[Child], None] | None = None
        self.on_closed: Callable[[Child], None] | None = None
        self.tags: dict[str, bytes] = {}  # for whoever formats messages about this child
        self._started = time.monotonic()
        self._pidfd = spawned.pidfd
        self._launcher = launcher
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []
        self._pump: StdinPump | None = None
        if spec.tty:
            self.streams = [Stream(PTY, spawned.fds[0])]
            self._pump = StdinPump(spawned.fds[0], loop)
        else:
            self.streams = [Stream(STDOUT, spawned.fds[0]), Stream(STDERR, spawned.fds[1])]
            if spec.pipe_stdin:
                self._pump = StdinPump(spawned.fds[2], loop, self._stdin_closed)

    def begin(self) -> None:
        """Start reading, and hear of the exit."""
        if self._pidfd < 0:
            return  # discarded meanwhile
        for stream in self.streams:
            self._read_from(stream)
        self._launcher.watch(self.number, self._exited)

    # --- state ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self.exit is None

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
        self._waiters.append(future)
        timer = self._loop.call_later(timeout, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            if future in self._waiters:
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
        self.terminated = self.terminated or self.running
        await self._launcher.signal(self.number, signal.SIGKILL, link.SCOPE_TREE)

    async def end(self, grace: float) -> None:
        """HUP for a terminal, TERM, and after the grace KILL; returns when it is sent."""
        if self.running and grace > 0:
            self.terminated = True
            if self.spec.tty:
                await self.signal(signal.SIGHUP, tree=True)
            await self.signal(signal.SIGTERM, tree=True)
            deadline = self._loop.time() + grace
            while self.running and (left := deadline - self._loop.time()) > 0:
                await self.changed(left)
        await self.kill()

    # --- output ------------------------------------------------------------------------------

    def resume(self) -> None:
        """The sink wants output again, or there is no sink any more."""
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
        if sink is not None and not sink.ready:
            self._block(sink, stream)
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

    def _retry(self, stream: Stream) -> bool:
        """Out of descriptors or memory: the child waits until there are some."""
        self._stop_reading(stream)
        self._loop.call_later(_RETRY_SECONDS, self._read_from, stream)
        return False

    def _open_spool(self, stream: Stream) -> Spool:
        spool = Spool()
        if stream.index == PTY:
            try:
                stream.staging = Staging()
            except OSError:
                spool.close()
                raise
            self._launcher.keep(self.number, b"staging", stream.staging.read_end)
        stream.spool = spool
        name = STREAM_NAMES[stream.index].encode()
        self._launcher.keep(self.number, b"spool." + name, spool.fd)
        return spool

    def _publish(self, chunk: Chunk) -> None:
        if self.sink is not None:
            self.sink.output(self, chunk)
        self._wake()

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
        if self._pidfd < 0:
            return  # discarded meanwhile
        usage = Usage(int(self.age * 1000), user_ms, system_ms, rss)
        if self.sink is None or self.sink.ready:
            for stream in self.streams:
                for _ in range(_LAST_STEPS):
                    if stream.ended or not self._take(stream):
                        break
        self._note_exit(self._exit_info(status, usage))

    def _exit_info(self, status: int, usage: Usage) -> ExitInfo:
        contained = self.spec.containment is not None
        return exit_from_status(
            status, terminated=self.terminated, usage=usage, contained=contained
        )

    def _note_exit(self, info: ExitInfo) -> None:
        self.exit = info
        if self.spec.judge is not None:
            self.verdict = self.spec.judge(info.code, self._texts() if info.code else [])
        os.close(self._pidfd)
        self._pidfd = -1
        if self._pump is not None:
            if self.terminated:
                self._pump.close()  # refuses who still waits
            else:
                # As on the wire: a write after the exit is accepted, and its bytes vanish.
                self._pump.abandon()
        seq = self.log.exited()
        if self.sink is not None:
            self.sink.exited(self, seq)
        self._wake()
        self._counted()
        self._maybe_closed()

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
        if self.exit is None or self.closed or not all(s.ended for s in self.streams):
            return
        seq = self.log.closed()
        if self._pump is not None:
            self._pump.close()
        self._launcher.release(self.number)
        if self.sink is not None:
            self.sink.closed(self, seq)
        self._wake()
        self._shrink()
        if self.on_closed is not None:
            self.on_closed(self)

    def _shrink(self) -> None:
        """What is only kept for late readers is kept small; there may be very many."""
        self.spec = self.spec.without_env()
        self.tags = _NO_TAGS
        self._pump = None
        if all(stream.spool is None for stream in self.streams):
            self.streams = _NO_STREAMS

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

    def _counted(self) -> None:
        if self.on_exit is not None:
            on_exit, self.on_exit = self.on_exit, None
            on_exit(self)

    def discard(self, *, forget: bool = True) -> None:
        """Let go of everything, retained output too.  The child must have ended or been killed.

        Without ``forget`` the keeper goes on knowing its family, so that it can be ended.
        """
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
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if forget:
            self._launcher.forget(self.number)
        self.sink = None
        self._counted()  # discarded before its exit was known
        self._wake()

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
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
