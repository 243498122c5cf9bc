"""Removes the placeholders of sandboxes that previous servers have set up.

These belong to no lease of this server.  So all records are looked through when it begins, for
what ended together with its server or its keeper; when a sandbox has ended that it took over; and
when it stops.  That is done in a thread: there may be many records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
import time

from handrail import private_places
from handrail.errors import HandrailError
from handrail.futures import set_done

log = logging.getLogger(__name__)

#: How long processes may take to exit that have begun to.
_EXIT_SECONDS = 2.0
#: The file that is there without any record.
_LOCK = "lock"


class PlaceholderSweep:
    """Belongs to one server; nothing is done before `soon` was called."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: Pidfds of processes that hold a lease until they are gone.
        self._exiting: list[int] = []
        self._due = False
        self._task: asyncio.Task[None] | None = None

    def soon(self, pidfd: int = -1) -> None:
        """Sweep, once the process has exited that a pidfd is given of; that is closed."""
        if pidfd >= 0:
            self._exiting.append(pidfd)
        self._due = True
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._sweep())

    async def finish(self) -> None:
        """Sweep for the last time."""
        if self._task is not None:
            self.soon()
            await self._task

    async def _sweep(self) -> None:
        while self._due:
            self._due = False
            exiting, self._exiting = self._exiting, []
            swept: asyncio.Future[None] = self._loop.create_future()
            # One of its own: a pool's would stay, in every server.
            threading.Thread(target=self._work, args=(exiting, swept), daemon=True).start()
            await swept

    def _work(self, exiting: list[int], swept: asyncio.Future[None]) -> None:
        try:
            _sweep_after(exiting)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(set_done, swept)


def _sweep_after(exiting: list[int]) -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for pidfd in exiting:
        looked = select.poll()
        looked.register(pidfd, select.POLLIN)
        looked.poll(max(0, int((deadline - time.monotonic()) * 1000)))
        os.close(pidfd)
    try:
        if set(os.listdir(private_places.covers_directory())) <= {_LOCK}:
            return
        from handrail.sandbox.plan.placeholders import PlaceholderRegistry  # few need it

        registry = PlaceholderRegistry()
        try:
            registry.sweep()
        finally:
            registry.close()
    except FileNotFoundError:
        pass  # no sandbox was ever there
    except (OSError, HandrailError) as error:
        log.error("what sandboxes of killed servers have left stays for now: %s", error)
