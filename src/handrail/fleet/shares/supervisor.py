"""Supervises the server of one share: starts it, restarts it, touches its stamp, reports it.

The server outlives this, so a supervisor that begins anew finds it running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from handrail.fleet.errors import FleetError
from handrail.fleet.settings import FleetSettings
from handrail.fleet.shares.server import ShareOptions, ShareServer, sweep
from handrail.version import __version__

log = logging.getLogger(__name__)

#: How often it says that it lives.
BEAT_SECONDS = 10.0
_RETRY_SECONDS = 1.0

#: Tells of a share; False: it is not wanted any more.
Tell = Callable[[str, dict[str, Any]], Awaitable[bool]]


class ShareSupervisor:
    """Looks after one server."""

    def __init__(
        self,
        settings: FleetSettings,
        options: ShareOptions,
        *,
        engine_id: str,
        labels: dict[str, str],
        tell: Tell,
    ) -> None:
        self._settings = settings
        self._options = options
        self._tell_registrar = tell
        home = settings.state_dir or os.path.join(_state_home(), "fleet")
        self._home = os.path.join(home, settings.name)
        self.server = ShareServer(os.path.join(self._home, options.share), options)
        #: What there is to tell.
        self.report: dict[str, Any] = {
            "state": "joining",
            "engine_id": engine_id,
            "labels": labels,
            "supervisor_pid": os.getpid(),
            "version": __version__,
            "cpu_millis": options.cpu_millis,
            "memory_bytes": options.memory_bytes,
        }
        self.stopped = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start the work, in the running event loop."""
        loop = asyncio.get_running_loop()
        for work in (self._serve, self._tell, self._touch):
            self._tasks.append(loop.create_task(_lasting(work)))

    async def stop(self) -> None:
        """End the server with everything in it."""
        self.stopped.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.server.stop)

    async def usage(self) -> list[tuple[str, str, int, float, int]]:
        """The workspaces of the server by tenant and owner: number, processors, memory."""
        from handrail.fleet.shares.usage import usage_of

        return await usage_of(self.server.url, self._options, self.server.certificate)

    async def _serve(self) -> None:
        """Keep the server running."""
        await asyncio.to_thread(
            sweep, self._home, self._options.share, 2 * self._settings.orphan_after
        )
        if not await self._tell_registrar(self._options.share, self.report):
            raise FleetError(f"share {self._options.share} is not wanted")  # and will be ended
        try:
            await asyncio.to_thread(self.server.begin)
            while True:
                url, certificate = self.server.url, self.server.certificate
                self._now(state="ready", url=url, certificate=certificate)
                await self._until_dead()
                log.warning("the server of %s has died; starting it again", self._options.share)
                await asyncio.to_thread(self.server.start)
        except (FleetError, OSError) as error:
            self._now(state="failed", error=str(error))

    async def _until_dead(self) -> None:
        fd = self.server.watch()
        if fd is None:
            return
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        loop.add_reader(fd, dead.set)
        try:
            await dead.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def _now(self, **members: Any) -> None:
        self.report = {**self.report, **members}
        self._changed.set()

    async def _tell(self) -> None:
        """Tell what is new, at once, and now and then that we live."""
        while True:
            self._changed.clear()
            await self._tell_registrar(self._options.share, self.report)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._changed.wait()

    async def _touch(self) -> None:
        while True:
            await asyncio.to_thread(self.server.touch)
            await asyncio.sleep(min(5.0, self._settings.orphan_after / 8))


async def _lasting(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do it until it is done, whatever happens meanwhile: the registrar may be away."""
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 (a call of any engine may fail in any way)
            log.warning("%s: %s; trying again", work.__name__, error)
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return


def _state_home() -> str:
    from handrail.private_places import state_home

    return str(state_home())
