"""Warm pools: clean workspaces of a template, made before they are asked for.

A ready workspace is in the list of its pool and has a mark on disk.  Taking it removes it from the
list in one step of the event loop, and its mark before its record is written; no way leads back.
So none is given out twice, by this server or the next, and what was used is removed by its release.
"""

from __future__ import annotations

import asyncio
import logging
import os
from _blake2 import blake2b  # without the rest of hashlib, which loads OpenSSL
from collections.abc import Awaitable, Callable

import msgspec

from handrail.errors import HandrailError, RpcError
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.server.workspaces import refusals
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.record import PoolRecord
from handrail.server.workspaces.templates import Templates
from handrail.server.workspaces.tree_copy import Stopped

log = logging.getLogger(__name__)

#: Seconds until a pool that could not be filled is tried again.
_AGAIN_SECONDS = 5.0

#: Seconds until one that was taken is replaced: the copy would slow down its first command.
_REFILL_SECONDS = 0.05

#: Characters of a digest, with which the name of a pool begins.
_DIGEST = 64

Prepare = Callable[[list[str], str], Awaitable[None]]


def key_of(digest: str, tenant: str | None) -> str:
    """The name of a pool; ``tenant``: the one that it is for, as a signed token says.

    What ``prepare`` made for one tenant is no other's.
    """
    if tenant is None:
        return digest
    return f"{digest}.{blake2b(tenant.encode(), digest_size=16).hexdigest()}"


class Pool:
    """The ready workspaces of one template."""

    def __init__(self, wanted: PoolRecord) -> None:
        self.wanted = wanted
        self.ready: list[str] = []
        self.filling: asyncio.Task[None] | None = None
        #: Counts what was asked of it, so that work begun before a change is not used after it.
        self.version = 0


class Pools:
    """All warm pools of a server."""

    def __init__(
        self,
        directories: Directories,
        work: FileWork,
        templates: Templates,
        min_free: int,
        prepare: Prepare,
    ) -> None:
        self._directories = directories
        self._work = work
        self._templates = templates
        self._min_free = min_free
        self._prepare = prepare
        self._pools: dict[str, Pool] = {}
        self._closed = False
        #: Work that outlives the call it was begun for.
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self) -> set[str]:
        """Find what another server left ready; returns the names of these workspaces."""
        found: set[str] = set()
        for key in self._directories.names("pools"):
            data = self._directories.read("pools", key)
            try:
                pool = Pool(msgspec.json.decode(data or b"", type=PoolRecord))
            except msgspec.DecodeError:
                self._directories.remove("pools", key)
                continue
            if key[:_DIGEST] in self._templates:
                pool.ready = self._left_ready(key)
                found.update(pool.ready)
                self._pools[key] = pool
        return found

    def _left_ready(self, key: str) -> list[str]:
        names = self._directories.names("ready", key)
        return [name for name in names if os.path.isdir(self._directories.root(name))]

    def begin(self) -> None:
        """Fill all pools."""
        for key in self._pools:
            self._fill(key)

    def counts(self, tenant: str | None = None) -> dict[str, int]:
        """How many are ready, by template; of one tenant only those that it may have."""
        found: dict[str, int] = {}
        for key, pool in self._pools.items():
            digest = key[:_DIGEST]
            if tenant is None or key in (digest, key_of(digest, tenant)):
                found[digest] = found.get(digest, 0) + len(pool.ready)
        return found

    def templates(self) -> set[str]:
        """The templates of all pools."""
        return {key[:_DIGEST] for key in list(self._pools)}

    def take(self, digest: str, tenant: str) -> tuple[str, str] | None:
        """The pool and the name of a ready workspace, which belongs to the caller now."""
        for key in (key_of(digest, tenant), digest):
            pool = self._pools.get(key)
            if pool is not None and pool.ready:
                name = pool.ready.pop()
                asyncio.get_running_loop().call_later(_REFILL_SECONDS, self._fill, key)
                return key, name
        return None

    def claim(self, key: str, name: str) -> bool:
        """Remove the mark of a workspace that was taken; blocking.  False: it is not clean."""
        return self._directories.remove("ready", key, name)

    def make_files(
        self, template: str | None, taken: tuple[str, str] | None, min_free: int
    ) -> tuple[str, bool]:
        """Make a directory, or claim a warm one; blocking.  Its name, and whether it is warm."""
        free = self._templates.make_room()
        if free < min_free:
            raise refusals.no_disk(free, min_free)
        if taken is not None and self.claim(*taken):
            return taken[1], True
        if template is None:
            return self._directories.make(), False
        return self._directories.make(lambda root: self._templates.fill(template, root)), False

    async def resize(
        self, digest: str, size: int, prepare: list[str] | None, tenant: str | None
    ) -> int:
        """Make a pool of this size and wait until it is full; raises RpcError."""
        key = key_of(digest, tenant)
        pool = self._pools.get(key)
        if size == 0:
            await self._drop(key)
            return 0
        self._templates.check(digest)
        wanted = PoolRecord(size, prepare)
        if pool is None:
            pool = self._pools[key] = Pool(wanted)
        surplus: list[str] = []
        if pool.wanted.prepare != prepare:
            pool.version += 1
            surplus, pool.ready = pool.ready, []
        pool.wanted = wanted
        while len(pool.ready) > size:
            surplus.append(pool.ready.pop())
        data = msgspec.json.encode(wanted)
        await self._work.quick(self._directories.write, data, "pools", key)
        for name in surplus:
            self._discard(key, name)
        filling = self._fill(key)
        try:
            if filling is not None:
                await asyncio.shield(filling)
        except RpcError as error:
            if error.code == INVALID_PARAMS:  # what failed once in `prepare` would fail again
                await self._drop(key)
            raise
        return len(pool.ready)

    async def _drop(self, key: str) -> None:
        pool = self._pools.pop(key, None)
        if pool is None:
            return
        pool.version += 1
        await self._work.quick(self._directories.remove, "pools", key)
        for name in pool.ready:
            self._discard(key, name)

    def _discard(self, key: str, name: str) -> None:
        """Remove a ready workspace that is not wanted any more."""

        def remove() -> None:
            self.claim(key, name)
            self._directories.discard(name)

        self._spawn(self._quietly(self._work.long(remove)))

    # --- filling -------------------------------------------------------------------------------

    def _fill(self, key: str) -> asyncio.Task[None] | None:
        """Start to fill a pool unless it is full, or being filled."""
        pool = self._pools.get(key)
        if pool is None or self._closed or len(pool.ready) >= pool.wanted.size:
            return None
        if pool.filling is None:
            pool.filling = asyncio.get_running_loop().create_task(self._fill_up(key, pool))
            pool.filling.add_done_callback(lambda task: self._filled(key, pool, task))
        return pool.filling

    def _filled(self, key: str, pool: Pool, task: asyncio.Task[None]) -> None:
        pool.filling = None
        error = None if task.cancelled() else task.exception()  # asked for, or asyncio complains
        if task.cancelled() or self._closed:
            return
        if error is None:
            self._fill(key)  # taken from meanwhile
            return
        log.warning("the warm pool of %s cannot be filled: %s", key[:12], error)
        asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._fill, key)

    async def _fill_up(self, key: str, pool: Pool) -> None:
        while self._pools.get(key) is pool and len(pool.ready) < pool.wanted.size:
            version = pool.version
            try:
                name = await self._work.long(self._make, key)
            except OSError as error:
                raise refusals.files_failed(error) from None
            try:
                if pool.wanted.prepare is not None:
                    await self._prepare(pool.wanted.prepare, name)
                if pool.version == version and self._pools.get(key) is pool:
                    await self._work.quick(self._mark, key, name)
                    if pool.version == version and self._pools.get(key) is pool:
                        pool.ready.append(name)
                        continue
            except BaseException:
                self._discard(key, name)
                raise
            self._discard(key, name)

    def _make(self, key: str) -> str:
        free = self._templates.make_room()
        if free < self._min_free:
            raise refusals.no_disk(free, self._min_free)
        return self._directories.make(lambda root: self._templates.fill(key[:_DIGEST], root))

    def _mark(self, key: str, name: str) -> None:
        os.makedirs(self._directories.of("ready", key), 0o700, exist_ok=True)
        self._directories.write(b"", "ready", key, name)

    # --- tasks -----------------------------------------------------------------------------------

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (HandrailError, OSError, Stopped) as error:
            log.warning("a workspace of a warm pool was not removed: %s", error)

    def _spawn(self, work: Awaitable[None]) -> None:
        if self._closed:
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Fill no more; what is ready stays for the next server."""
        self._closed = True
        for pool in self._pools.values():
            if pool.filling is not None:
                pool.filling.cancel()

    async def drop_all(self) -> None:
        """End all pools; the server ends with everything it has."""
        for key in list(self._pools):
            try:
                await self._drop(key)
            except RpcError as error:
                log.warning("a warm pool was not removed: %s", error)
