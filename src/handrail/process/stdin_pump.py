"""Bytes on their way into a child's stdin.

Never blocks: what the child does not take at once waits here, in order, up to a bound in
chunks and in bytes.  Beyond it a writer waits for room, and only that writer.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

from handrail.errors import StdinClosed

#: The peer queues 128 chunks; the bytes are bounded too, for chunks may be large.
QUEUE_CHUNKS = 128
QUEUE_BYTES = 8 * 1024 * 1024


class StdinPump:
    """The queue in front of one pipe or terminal."""

    __slots__ = (
        "_closing",
        "_fd",
        "_loop",
        "_on_close",
        "_queue",
        "_size",
        "_waiting",
        "_writing",
        "broken",
    )

    def __init__(
        self,
        fd: int,
        loop: asyncio.AbstractEventLoop,
        on_close: Callable[[int], None] | None = None,
    ) -> None:
        self._fd = fd
        self._loop = loop
        self._on_close = on_close  # None for a terminal, which is closed by whoever reads it
        self._queue: deque[memoryview] = deque()
        self._size = 0
        self._waiting: deque[tuple[asyncio.Future[None], bytes, Callable[[], bool]]] = deque()
        self._writing = False
        self._closing = False
        self.broken = False  # the child is gone or has closed its end: bytes vanish

    @property
    def full(self) -> bool:
        return bool(self._queue) and (len(self._queue) >= QUEUE_CHUNKS or self._size >= QUEUE_BYTES)

    @property
    def closed(self) -> bool:
        return self._fd < 0 or self._closing

    def put(self, data: bytes, accept: Callable[[], bool]) -> asyncio.Future[None] | None:
        """Queue bytes in their turn; None when that was now.

        ``accept`` is called in the same step as the queueing and says whether to write at
        all; a future that is cancelled before its turn leaves no trace.
        """
        if self.closed:
            raise StdinClosed("stdin of this process is closed")
        if self._waiting or self.full:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((future, data, accept))
            return future
        if accept():
            self._queue_up(data)
        return None

    def finish(self) -> None:
        """End of file after what is queued, and after those who wait for their turn."""
        self._closing = True
        self._next()

    def close(self) -> None:
        """Drop what is queued and let go of the descriptor."""
        if self._fd < 0:
            return
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False
        fd, self._fd = self._fd, -1
        if self._on_close is not None:
            self._on_close(fd)
        self._queue.clear()
        self._size = 0
        waiting, self._waiting = self._waiting, deque()
        for future, _, _ in waiting:
            if not future.done():
                future.set_exception(StdinClosed("stdin of this process was closed"))

    def _queue_up(self, data: bytes) -> None:
        if self.broken:
            return
        view = memoryview(data)
        if not self._queue:
            view = view[self._write(view) :]
        if view and not self.broken:
            self._queue.append(view)
            self._size += len(view)
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._writable)

    def _write(self, view: memoryview) -> int:
        try:
            return os.write(self._fd, view)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            return len(view)

    def _writable(self) -> None:
        while self._queue:
            view = self._queue[0]
            written = self._write(view)
            if self.broken:
                return
            self._size -= written
            if written < len(view):
                self._queue[0] = view[written:]
                break
            self._queue.popleft()
        self._next()
        if self._writing and not self._queue:
            self._loop.remove_writer(self._fd)
            self._writing = False

    def abandon(self) -> None:
        """The reader is gone: accept everything, write nothing."""
        if self._fd >= 0 and not self.broken:
            self._break()

    def _break(self) -> None:
        self.broken = True
        self._queue.clear()
        self._size = 0
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Give waiting writers their turn, first come first served; then the end, if asked."""
        while self._waiting and not self.full:
            future, data, accept = self._waiting.popleft()
            if not future.done():
                if accept():
                    self._queue_up(data)
                future.set_result(None)
        if self._closing and not self._queue and not self._waiting:
            self.close()
