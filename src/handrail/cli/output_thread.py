"""Writes to our own stdout and stderr without blocking the event loop.

A daemon thread, so that a stalled reader cannot block the exit of this process.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import threading

from handrail.cli.stdio import OutputFailed
from handrail.secret_masks import NO_SECRETS, Secrets, StreamMasker


class Writer:
    """Both streams, one write after the other; secrets are masked in them."""

    def __init__(self, secrets: Secrets = NO_SECRETS) -> None:
        self._masker: StreamMasker[int] = StreamMasker(secrets)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[int, bytes, asyncio.Future[None]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="output", daemon=True).start()

    async def write(self, fd: int, data: bytes, omitted: int = 0) -> None:
        """Return when it was written, but for what may become a secret; raises OutputFailed.

        ``omitted`` bytes before it are missing, of either stream.
        """
        await self._write(fd, self._masker.feed(fd, data, omitted))

    def cut(self) -> None:
        """What is written next does not follow what was written."""
        self._masker.cut()

    async def finish(self) -> None:
        """Write what may have become a secret and has not; raises OutputFailed."""
        for fd, rest in self._masker.finish():
            await self._write(fd, rest)

    async def _write(self, fd: int, data: bytes) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((fd, data, done))
        await done

    def _run(self) -> None:
        while True:
            fd, data, done = self._queue.get()
            error: OutputFailed | None = None
            try:
                _write_all(fd, data)
            except OSError as why:
                error = OutputFailed(fd, why)
            try:
                self._loop.call_soon_threadsafe(_tell, done, error)
            except RuntimeError:
                return  # the loop has ended


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another process that shares it set O_NONBLOCK
            select.select([], [fd], [])


def _tell(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        return  # its waiter is gone
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
