"""Empty directories of workspaces: made one at a time, removed many at a time.

Each costs the file system six changes, which is more than all else that a workspace costs, and a
change that a thread makes beside a busy event loop costs the lock of the interpreter twice on top.
So the loop makes them itself as long as the disk is quick; when one has taken long, they are made
ahead by threads for some seconds, as many as were asked for.  Used ones are renamed at once and
removed a moment later, where blocks are discarded at 0.1 ms each (``remove_directories.py``).

What commands could write, ``root`` and ``tmp``, is always new; the directory around the two, the
*shell*, is renamed and used again if it is as it was made.  A spare one is in ``w`` without a
record, a shell in ``trash``: the next server removes both.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from handrail.sandbox import temp_dirs
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.remove_directories import is_shell, removed
from handrail.server.workspaces.spares import Spares

#: The most that are made ahead.
_MOST = 32
#: Seconds until used ones are removed, unless so many wait.
_REMOVAL_SECONDS = 1.0
_MANY = 256
#: A change that takes so many seconds is a slow one, and how long the loop makes none then.
_SLOW_SECONDS = 0.05
_REST_SECONDS = 10.0
#: The most shells that are kept, which come many at a time.
_MOST_SHELLS = 2 * _MANY


class SpareDirectories:
    """What of one server's workspaces is made ahead, and what of them is to be removed."""

    def __init__(
        self,
        directories: Directories,
        work: FileWork,
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._directories = directories
        self._work = work
        self._spawn = spawn
        self._spares: Spares[str] = Spares(_MOST, self._make, spawn)
        self.put_back = self._spares.put_back
        self._asked = False  # since the last look
        self._rests_until = 0.0
        self._aside: list[str] = []
        self._shells: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def take(self) -> str | None:
        """The name of an empty one, which belongs to the caller now; None: there is none."""
        now = time.monotonic()
        if now < self._rests_until:
            return self._spares.take()
        self._asked = True
        name = self._spares.take_ready()
        if name is None and not self._spares.closed:
            try:
                name = self._directories.make(shell=self._shell())
            except OSError:
                return None
            taken = time.monotonic()
            if taken - now > _SLOW_SECONDS:
                self._rests_until = taken + _REST_SECONDS
        return name

    def _shell(self) -> str | None:
        while self._shells:
            path = self._shells.pop()
            if is_shell(path):
                return path
            self._aside.append(path)
        return None

    async def _make(self, count: int) -> list[str]:
        shells, self._shells = self._shells[:count], self._shells[count:]
        made = await self._work.quick(self._make_some, count, shells)
        if self._spares.closed:
            await self._removed(self._put_aside(made))
            return []
        return made

    def _make_some(self, count: int, shells: list[str]) -> list[str]:
        return [
            self._directories.make(shell=shells.pop() if shells else None) for _ in range(count)
        ]

    def remove(self, name: str) -> None:
        """Remove the directory of a workspace: it is gone from its place when this returns."""
        aside = self._directories.put_aside(name)
        if aside is None or self._spares.closed:
            return
        self._aside.append(aside)
        if len(self._aside) >= _MANY:
            self._remove_now()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_REMOVAL_SECONDS, self._remove_now)

    def _remove_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        aside, self._aside = self._aside, []
        if aside and not self._spares.closed:
            self._spawn(self._removed(aside))

    async def _removed(self, paths: list[str]) -> None:
        most = 0 if self._spares.closed or not self._asked else _MOST_SHELLS - len(self._shells)
        shells, others = await removed(paths, max(0, most), self._work.quick)
        self._shells += shells
        await asyncio.gather(
            *(self._work.long(temp_dirs.clear, os.fsencode(path)) for path in others),
            return_exceptions=True,
        )

    def look(self) -> None:
        """Called now and then: give back what no client has asked for since the last time."""
        asked, self._asked = self._asked, False
        if self._spares.unused() and not asked and (self._shells or self._spares.any):
            self._spawn(self.drop())

    async def drop(self) -> None:
        """Remove the spare ones, and what was put aside."""
        paths = self._put_aside(self._spares.give_up()) + self._aside + self._shells
        self._aside, self._shells, self._asked = [], [], False
        await self._removed(paths)

    def _put_aside(self, names: list[str]) -> list[str]:
        return [path for name in names if (path := self._directories.put_aside(name)) is not None]

    async def end(self) -> None:
        """Make no more, and leave nothing; the server stops."""
        self._spares.close()
        await self.drop()

    def close(self) -> None:
        """Make no more; the next server removes what is left."""
        self._spares.close()
        if self._timer is not None:
            self._timer.cancel()
