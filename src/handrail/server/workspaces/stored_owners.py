"""Owners without a connection, on disk: the next server goes on counting their leases."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec

from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.leases import Leases, Owner

_FILE = "owners"


class StoredOwners:
    """Those of one server's workspaces."""

    def __init__(
        self,
        directories: Directories,
        work: FileWork,
        leases: Leases,
        owners: Callable[[], set[Owner]],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        """``owners`` names all that have workspaces; ``spawn`` runs work beside everything else."""
        self._directories = directories
        self._work = work
        self._leases = leases
        self._owners = owners
        self._spawn = spawn
        self._dirty = False
        self._closed = False

    def restore(self) -> None:
        """Go on with what the server before has written."""
        try:
            data = self._directories.read(_FILE) or b"[]"
            saved = msgspec.json.decode(data, type=list[tuple[Owner, float]])
        except msgspec.DecodeError:
            saved = []
        self._leases.restore(saved, self._owners(), time.monotonic())
        self.save()

    def save(self) -> None:
        """Write down which owners are without a connection; several changes at once."""
        if not self._dirty and not self._closed:
            self._dirty = True
            self._spawn(self._write())

    async def _write(self) -> None:
        self._dirty = False
        owners = self._owners()
        self._leases.forget(owners)
        data = msgspec.json.encode(self._leases.saved(owners))
        await self._work.quick(self._directories.write, data, _FILE)

    def close(self) -> None:
        """Write no more."""
        self._closed = True
