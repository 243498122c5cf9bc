"""Templates of a server: added once by their digest, copied into workspaces.

An archive is unpacked aside and renamed when all of it is there and has the digest it should have,
so a template that can be seen is complete.  When the disk gets full, templates of which there is no
workspace and no pool are removed, those first that were not used for longest; a client that wants
one again is told that it is missing, and sends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection

from handrail.errors import RpcError
from handrail.sandbox import temp_dirs
from handrail.server.workspaces import refusals
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork
from handrail.server.workspaces.tree_copy import TreeCopy

log = logging.getLogger(__name__)


class Templates:
    """The unpacked templates below one directory."""

    def __init__(self, directories: Directories, work: FileWork, min_free: int) -> None:
        self._directories = directories
        self._work = work
        self._min_free = min_free
        self._known = {n for n in os.listdir(directories.of("templates")) if n[0] != "."}
        #: Threads copy templates, and remove them.
        self._lock = threading.Lock()
        self._adding: dict[str, asyncio.Task[None]] = {}
        #: When each was last used; those of the server before were not.
        self._used: dict[str, float] = {}
        #: Those that workspaces and pools were made of.
        self.needed: Callable[[], Collection[str]] = tuple
        #: How many copies are being made of each.
        self._copying: Counter[str] = Counter()
        #: Tenants, each with a template that it has added.
        self._added: set[tuple[str, str]] = set()

    def __contains__(self, digest: str) -> bool:
        return digest in self._known

    def __len__(self) -> int:
        return len(self._known)

    def listed(self) -> list[str]:
        return sorted(self._known)

    def listed_for(self, tenant: str, used: Collection[str | None]) -> list[str]:
        """List the templates that a tenant has added, or uses."""
        return [one for one in self.listed() if one in used or (tenant, one) in self._added]

    def check(self, digest: str) -> None:
        """Raise the wire's error unless the template is here."""
        if digest not in self._known:
            raise self._missing(digest)

    def _missing(self, digest: str) -> RpcError:
        return refusals.bad_template(
            "missing", f"template {digest} is not on this server; send it with template/add"
        )

    async def add(self, digest: str, path: str, tenant: str | None = None) -> None:
        """Unpack an archive of this machine; raises RpcError.  Twice is the same as once."""
        if digest not in self._known:
            task = self._adding.get(digest)
            if task is None:
                task = asyncio.get_running_loop().create_task(self._add(digest, path))
                self._adding[digest] = task
                task.add_done_callback(lambda _: self._adding.pop(digest, None))
            await asyncio.shield(task)
        if tenant is not None:
            self._added.add((tenant, digest))

    async def _add(self, digest: str, path: str) -> None:
        from handrail.template_archive import BadTemplate  # tarfile costs 10 ms

        try:
            await self._work.long(self._unpack, digest, path)
        except BadTemplate as error:
            raise refusals.bad_template(error.kind, str(error)) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise refusals.bad_template(
                "missing", f"the archive cannot be read: {reason}"
            ) from None
        self._known.add(digest)
        self._used[digest] = time.monotonic()

    def _unpack(self, digest: str, path: str) -> None:
        from handrail.template_archive import BadTemplate, unpack

        self.make_room()
        aside = self._directories.of("templates", f".{digest}-{os.urandom(4).hex()}")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
        with open(os.open(path, flags), "rb") as archive:
            if not stat.S_ISREG(os.fstat(archive.fileno()).st_mode):  # a device may never end
                raise BadTemplate("missing", "the archive is no regular file")
            os.mkdir(aside, 0o700)
            try:
                unpack(
                    archive,
                    digest,
                    aside,
                    min_free=self._min_free,
                    stopped=self._work.is_stopped,
                )
                os.rename(aside, self._directories.of("templates", digest))
            except BaseException:
                temp_dirs.clear(os.fsencode(aside))
                raise

    def fill(self, digest: str, root: str) -> None:
        """Copy a template into an empty directory; blocking.  Raises RpcError if it is gone."""
        with self._lock:
            if digest not in self._known:
                raise self._missing(digest)
            self._copying[digest] += 1
            self._used[digest] = time.monotonic()
        try:
            TreeCopy(self._work.is_stopped).copy(self._directories.of("templates", digest), root)
        finally:
            with self._lock:
                self._copying[digest] -= 1

    def make_room(self) -> int:
        """Remove unused templates while the disk is too full; blocking.  Returns what is free."""
        while (free := self._directories.free()) < self._min_free:
            with self._lock:
                idle = self._known.difference(self.needed(), +self._copying)
                if not idle:
                    break
                digest = min(idle, key=lambda one: (self._used.get(one, 0.0), one))
                aside = self._directories.of("trash", f"{digest}-{os.urandom(4).hex()}")
                os.rename(self._directories.of("templates", digest), aside)
                self._known.discard(digest)
                self._used.pop(digest, None)
            log.warning(
                "template %s is removed, for the disk has %d bytes free and %d have to stay so",
                digest,
                free,
                self._min_free,
            )
            temp_dirs.clear(os.fsencode(aside))
        return free
