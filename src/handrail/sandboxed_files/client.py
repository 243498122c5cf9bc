"""Client of one sandboxed file helper: call ids, futures, frames, a socket that never blocks.

Knows nothing of processes; the starter of the helper passes it the other end of the socket.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from handrail import passed_fds
from handrail.errors import FilesError
from handrail.sandboxed_files import frames
from handrail.sandboxed_files.frames import GREETING

_STEP = 256 * 1024
#: Longer heads are parsed in a thread by the caller.
SMALL_HEAD = 64 * 1024


class Reply(NamedTuple):
    """An answer as it came; ``result`` parses its head, which takes a while for long listings."""

    head: bytes
    body: bytes

    def result(self) -> Any:
        """What the helper answered; raises FilesError when the operation failed."""
        answer = frames.decode_head(self.head)
        if len(answer) == 2:
            return answer[1]
        _, _, message, kind, path = answer
        raise FilesError(message, kind=kind, path=path)


class FileHelperClient:
    """One end of the socket, on one event loop."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        lost: Callable[[], None],
        greeted: Callable[[list[int]], None] | None = None,
    ) -> None:
        """``greeted``: gets the descriptors that come with a byte before all frames."""
        sock.setblocking(False)
        self._sock = sock
        self._loop = loop
        self._lost = lost
        self._greeted = greeted
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        #: When each of them is given up, and the one timer for all: most calls need no timer.
        self._due: dict[int, tuple[float, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Calls whose callers have stopped waiting and that were not answered yet.
        self._given_up: set[int] = set()
        self._reader = frames.FrameReader()
        #: Used again and again: the C library maps and unmaps memory for one of this size.
        self._buffer = memoryview(bytearray(_STEP))
        self._unsent: deque[memoryview] = deque()
        self.alive = True
        loop.add_reader(sock.fileno(), self._readable)

    @property
    def hung(self) -> int:
        """How many calls were given up and are still with the helper."""
        return len(self._given_up)

    @property
    def busy(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._waiting)

    async def call(
        self, op: str, arguments: list[Any], body: bytes | memoryview = b"", *, deadline: float
    ) -> Reply:
        """Run one operation; raises FilesError when the helper is lost or too slow."""
        if not self.alive:
            raise _ended()
        self._number += 1
        number = self._number
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting[number] = future
        due = self._loop.time() + deadline
        self._due[number] = due, deadline
        if self._timer is None or due < self._timer.when():
            self._watch()
        self._send(frames.encode([number, op, arguments], body))
        try:
            return await future
        finally:
            del self._due[number]
            if self._waiting.pop(number, None) is not None:  # cancelled
                self._given_up.add(number)

    def close(self) -> None:
        """Close the socket, which ends the helper, and fail all pending calls."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(_ended())

    def _watch(self) -> None:
        """Set the timer to the first deadline."""
        if self._timer is not None:
            self._timer.cancel()
        waiting = (due for number, (due, _) in self._due.items() if number in self._waiting)
        first = min(waiting, default=None)
        self._timer = None if first is None else self._loop.call_at(first, self._look)

    def _look(self) -> None:
        """Give up the calls that are due."""
        self._timer = None
        now = self._loop.time()
        for number, (due, deadline) in self._due.items():
            future = self._waiting.get(number)
            if due <= now and future is not None and not future.done():
                del self._waiting[number]
                self._given_up.add(number)
                text = f"the file operation did not finish within {deadline:g} s and was given up"
                future.set_exception(FilesError(text))
        self._watch()

    def _send(self, pieces: list[bytes | memoryview]) -> None:
        idle = not self._unsent
        self._unsent.extend(memoryview(piece) for piece in pieces)
        if idle and not self._flush():
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        if self._flush() and self.alive:
            self._loop.remove_writer(self._sock.fileno())

    def _flush(self) -> bool:
        """Whether everything was sent."""
        try:
            while self._unsent:
                sent = self._sock.send(self._unsent[0])
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            return False
        except OSError:
            self._gone()
        return True

    def _readable(self) -> None:
        try:
            if self._greeted is not None:
                self._take_greeting()
                return
            size = self._sock.recv_into(self._buffer)
            if not size:
                raise ConnectionResetError
            for head, body in self._reader.feed(self._buffer[:size]):
                self._answered(head, body)
        except BlockingIOError:
            return
        except (OSError, frames.BrokenFrame):
            self._gone()

    def _take_greeting(self) -> None:
        """Read the byte before all frames, with what is passed; raises OSError."""
        said, passed = passed_fds.receive(self._sock, len(GREETING), 2)
        if said != GREETING:
            for fd in passed:
                os.close(fd)
            raise ConnectionResetError
        greeted, self._greeted = self._greeted, None
        if greeted is not None:
            greeted(passed)

    def _answered(self, head: bytes, body: bytes) -> None:
        # `[number,...`: only the number is parsed here, the rest by the caller.
        first = head[1:24].split(b",", 1)[0]
        if not first.isdigit():
            raise frames.BrokenFrame("an answer without a number")
        number = int(first)
        future = self._waiting.pop(number, None)
        if future is None:
            self._given_up.discard(number)
        elif not future.done():
            future.set_result(Reply(head, body))

    def _gone(self) -> None:
        if self.alive:
            self.close()
            self._lost()


def _ended() -> FilesError:
    return FilesError("the sandboxed file helper has ended, so this call was not done; try again")
