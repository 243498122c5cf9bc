"""Between a process and our own stdin, stdout and stderr, until one of them ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from handrail.cli import terminal
from handrail.errors import ExecutorError, HandrailError
from handrail.workspace.result import Exited

if TYPE_CHECKING:
    from handrail.process.spec import ExitInfo
    from handrail.workspace.process import AsyncProcess


class Relay:
    """One process at our streams.

    With ``leaves`` it goes on without us: ``detach_key`` (a byte), a hang-up or a TERM make
    ``run`` return None.  Otherwise they end it.
    """

    def __init__(
        self, process: AsyncProcess, *, raw: bool, leaves: bool = False, detach_key: bytes = b""
    ) -> None:
        self._process = process
        self._raw = raw
        self._leaves = leaves
        self._key = detach_key
        self._left = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> ExitInfo | None:
        """How it ended; None when the user has left it.  Raises BrokenPipeError when nobody
        takes the output any more, and what the way to the process raises.
        """
        with contextlib.ExitStack() as stack:
            if self._raw:
                stack.enter_context(terminal.raw())
            for number, action in self._signals().items():
                self._loop.add_signal_handler(number, action)
                stack.callback(self._loop.remove_signal_handler, number)
            # A thread: stdin may be a file, which no event loop can wait for.
            threading.Thread(target=self._read, name="stdin", daemon=True).start()
            following = self._loop.create_task(self._follow())
            leaving = self._loop.create_task(self._left.wait())
            try:
                await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
                return await following if following.done() else None
            finally:
                leaving.cancel()
                following.cancel()
                await asyncio.gather(leaving, following, *self._tasks, return_exceptions=True)

    async def _follow(self) -> ExitInfo:
        async for event in self._process:
            if isinstance(event, Exited):
                return event.exit
            if event.omitted:
                note = f"handrail: {event.omitted} bytes of output are no longer kept\r\n"
                await asyncio.to_thread(write_all, 2, note.encode())
            await asyncio.to_thread(write_all, 1 if event.stream == "stdout" else 2, event.data)
        raise AssertionError("the last event is the exit")  # pragma: no cover

    def _signals(self) -> dict[int, Callable[[], None]]:
        def end() -> None:
            if self._leaves:
                self._left.set()
            else:
                self._do(self._process.terminate())

        found: dict[int, Callable[[], None]] = {
            signal.SIGINT: lambda: self._do(self._process.interrupt()),
            signal.SIGTERM: end,
            signal.SIGHUP: end,
        }
        if self._raw:
            found[signal.SIGWINCH] = lambda: self._do(self._process.resize(*terminal.size()))
        return found

    def _do(self, coroutine: object) -> None:
        task = self._loop.create_task(_quietly(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read(self) -> None:
        """In its own thread: each piece is sent before the next is read."""
        while True:
            try:
                data = os.read(0, 1 << 16)
            except OSError:
                data = b""
            before, key, _ = data.partition(self._key) if self._key else (data, b"", b"")
            try:
                if before:
                    self._await(self._process.send(before))
                if key:
                    self._loop.call_soon_threadsafe(self._left.set)
                    return
                if not data:
                    self._await(self._process.close_stdin())
                    return
            except (HandrailError, RuntimeError):
                return  # it takes no more, or the loop has ended

    def _await(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()  # type: ignore[arg-type]


async def _quietly(coroutine: object) -> None:
    """A signal for something that has just ended is no error."""
    try:
        await coroutine  # type: ignore[misc]
    except ExecutorError:
        pass


def write_all(fd: int, data: bytes) -> None:
    """Write it all, also to a descriptor somebody has made non-blocking."""
    import select

    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
