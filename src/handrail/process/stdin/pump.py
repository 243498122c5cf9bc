"""The queue of bytes for a child's stdin.

Never blocks: what the child does not take at once waits in the log (``log.py``), in order,
up to a bound in chunks and in bytes.  Beyond it a writer waits for room, and only that writer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import termios
from collections import deque
from collections.abc import Callable

from handrail.errors import StdinClosed
from handrail.futures import retrieve_exception
from handrail.process.stdin.log import NO_ID, StdinLog

#: The peer queues 128 chunks; the bytes are bounded too, for chunks may be large.
QUEUE_CHUNKS = 128
QUEUE_BYTES = 8 * 1024 * 1024
#: Until a keeper that was busy is asked again.
_BUSY_SECONDS = 0.01


class StdinPump:
    """The queue in front of one pipe or terminal."""

    __slots__ = (
        "_closing",
        "_ends",
        "_fd",
        "_log",
        "_loop",
        "_on_close",
        "_open_log",
        "_stored",
        "_waiting",
        "_writing",
        "broken",
    )

    def __init__(
        self,
        fd: int,
        loop: asyncio.AbstractEventLoop,
        on_close: Callable[[int], None] | None = None,
        open_log: Callable[[], StdinLog] = StdinLog,
    ) -> None:
        self._fd = fd
        self._loop = loop
        self._on_close = on_close  # None for a terminal, which its output stream closes
        self._open_log = open_log
        self._log: StdinLog | None = None  # made with the first write
        self._ends: deque[int] = deque()  # of the chunks that wait in the log
        self._stored = False
        self._waiting: deque[tuple[asyncio.Future[None], bytes, Callable[[], bool]]] = deque()
        self._writing = False
        self._closing = False
        self.broken = False  # the child is gone or has closed its end: bytes vanish

    @property
    def full(self) -> bool:
        return bool(self._ends) and (
            len(self._ends) >= QUEUE_CHUNKS or self._waits() >= QUEUE_BYTES
        )

    @property
    def free(self) -> int:
        """How many bytes fit now; 0 also when other writers wait."""
        if self._waiting or len(self._ends) >= QUEUE_CHUNKS:
            return 0
        return max(0, QUEUE_BYTES - (self._waits() if self._ends else 0))

    def has_room(self, size: int) -> bool:
        """Whether that many bytes fit now; an empty queue takes any number at once."""
        return not self._waiting and not self.full and (not self._ends or size <= self.free)

    def _waits(self) -> int:
        return 0 if self._log is None else self._log.waiting

    @property
    def closed(self) -> bool:
        return self._fd < 0 or self._closing

    def put(self, data: bytes, accept: Callable[[], bool]) -> asyncio.Future[None] | None:
        """Queue bytes in their turn; None when that was now.

        ``accept`` is called in the same step as the queueing and says whether to write at
        all; it may ``store`` the bytes under their id itself.  A future that is cancelled before
        its turn leaves no trace.
        """
        if self.closed:
            raise StdinClosed("stdin of this process is closed")
        if not self._waiting and not self.full:
            try:
                self._accept(data, accept)
                return None
            except BlockingIOError:
                self._come_back()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((future, data, accept))
        return future

    def _come_back(self) -> None:
        """Try again later: the keeper is too busy to take the log, which it must have first."""
        self._loop.call_later(_BUSY_SECONDS, self._next)

    def store(self, data: bytes, digest: bytes = NO_ID, check: int = 0) -> None:
        """Put bytes into the log; of those that vanish only the id.  Raises OSError."""
        if self._fd < 0:
            return
        if self._log is None:
            if self.broken:
                return
            self._log = self._open_log()
        self._log.append(b"" if self.broken else data, digest, check)
        self._stored = True

    def revive(self, log: StdinLog) -> None:
        """Continue with the log of a previous server."""
        if self._fd < 0:
            log.close()  # nothing goes there any more; the keeper has it for the ids
            return
        self._log = log
        self._closing = log.closing
        if log.waiting:
            self._ends.append(log.end)
            self._write()
        self._next()

    def finish(self) -> None:
        """End of file after the queue and the waiting writers."""
        self._closing = True
        if self._log is not None and not self._waiting:
            self._log.finish()
        self._next()

    def type_end(self) -> None:
        """Version of `finish` for a terminal: type its end-of-file key."""
        eof = termios.tcgetattr(self._fd)[6][termios.VEOF]
        turn = self.put(eof if isinstance(eof, bytes) else bytes((eof,)), _always)
        if turn is not None:  # it may come too late for a process that ends first
            turn.add_done_callback(retrieve_exception)

    def close(self) -> None:
        """Drop the queue and close the fd."""
        if self._fd < 0:
            return
        self._stop_writing()
        fd, self._fd = self._fd, -1
        if self._on_close is not None:
            self._on_close(fd)
        self._forget_log()
        waiting, self._waiting = self._waiting, deque()
        for future, _, _ in waiting:
            if not future.done():
                future.set_exception(StdinClosed("stdin of this process was closed"))

    def holdings(self, *, tty: bool) -> dict[bytes, int]:
        """The fds that a keeper holds of it; it has the terminal already."""
        held = {} if tty or self._fd < 0 else {b"stdin": self._fd}
        if self._log is not None:
            held[b"input"] = self._log.fd
        return held

    def park(self, *, close: bool) -> None:
        """Stop using the log: another server takes over."""
        self._stop_writing()
        fd, self._fd = self._fd, -1
        if close and fd >= 0:
            os.close(fd)
        self._forget_log()

    def _accept(self, data: bytes, accept: Callable[[], bool]) -> None:
        self._stored = False
        if accept():
            if not self._stored:
                self.store(data)
            if data and not self.broken and self._log is not None:
                self._ends.append(self._log.end)
                if not self._writing:
                    self._write()

    def _write(self) -> None:
        """Write as much as the child takes, and continue when it takes more."""
        log, ends = self._log, self._ends
        if log is None:
            return
        try:
            while log.waiting:
                log.send(self._fd)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno == errno.ENOMEM:
                self._stop_writing()
                self._loop.call_later(_BUSY_SECONDS, self._write_again)
            else:
                self._break()
            return
        while ends and ends[0] <= log.sent:
            ends.popleft()
        if log.waiting and not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)

    def _write_again(self) -> None:
        if self._fd >= 0 and not self.broken:
            self._writable()

    def _stop_writing(self) -> None:
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False

    def _writable(self) -> None:
        self._write()
        if self.broken:
            return
        self._next()
        if not self._ends:
            self._stop_writing()

    def _forget_log(self) -> None:
        self._ends.clear()
        if self._log is not None:
            self._log.close()
            self._log = None

    def abandon(self) -> None:
        """Accept everything and write nothing: the reader is gone."""
        if self._fd >= 0 and not self.broken:
            self._break()

    def _break(self) -> None:
        self.broken = True
        self._ends.clear()
        self._stop_writing()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Let waiting writers continue in their order; then the end, if requested."""
        while self._waiting and not self.full:
            future, data, accept = self._waiting[0]
            try:
                if not future.done():
                    self._accept(data, accept)
                    future.set_result(None)
            except BlockingIOError:
                self._come_back()
                return
            except OSError as error:
                future.set_exception(error)
            self._waiting.popleft()
        if self._closing and not self._waiting:
            if self._ends:
                if self._log is not None:
                    self._log.finish()
            elif self._fd >= 0:
                self.close()


def _always() -> bool:
    return True
