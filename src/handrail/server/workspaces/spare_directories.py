"""Empty directories of workspaces, made and removed several at a time.

Each costs the file system six changes, which is more than all else that a workspace costs, and each
change that a thread makes beside a busy event loop costs the lock of the interpreter twice.  So
they are made ahead while workspaces are asked for, as many as were asked for, and used ones are
removed together, a moment after their release.  What commands could write, ``root`` and ``tmp``, is
always new; the directory around the two, the *shell*, is renamed and used again if it is as it was
made.  A spare one is in ``w`` without a record: the next server removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Awaitable, Callable

from handrail.sandbox import temp_dirs
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.spares import Spares

#: The most that are made ahead.
_MOST = 32
#: Seconds until used ones are removed, unless so many wait.
_REMOVAL_SECONDS = 0.1
_MANY = 64
_INNER = ("root", "tmp")
_SHELL = stat.S_IFDIR | 0o700


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
        #: The name of an empty one, which belongs to the caller now; None: there is none.
        self.take = self._spares.take
        self.put_back = self._spares.put_back
        self._aside: list[str] = []
        self._shells: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

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

    def remove(self, aside: str) -> None:
        """Have a directory that was put aside removed, together with others."""
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
        wanted = max(0, self._spares.wanted - len(self._shells))
        shells, others = await self._work.quick(_emptied, paths, wanted)
        self._shells += shells
        await asyncio.gather(
            *(self._work.long(temp_dirs.clear, os.fsencode(path)) for path in others),
            return_exceptions=True,
        )

    def look(self) -> None:
        """Called now and then: give back what no client has asked for since the last time."""
        if self._spares.unused():
            self._spawn(self.drop())

    async def drop(self) -> None:
        """Remove the spare ones, and what was put aside."""
        paths = self._put_aside(self._spares.give_up()) + self._aside + self._shells
        self._aside, self._shells = [], []
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


def _emptied(paths: list[str], most: int) -> tuple[list[str], list[str]]:
    """Remove workspaces in which nothing was left, but for so many shells.

    Returns these, and the paths of workspaces that hold more.
    """
    shells: list[str] = []
    others: list[str] = []
    for path in paths:
        try:
            for name in _INNER:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(f"{path}/{name}")
            if len(shells) < most and os.stat(path).st_mode == _SHELL and not os.listdir(path):
                shells.append(path)
            else:
                os.rmdir(path)
        except OSError:
            others.append(path)
    return shells, others
