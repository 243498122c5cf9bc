"""The files of this machine, in threads of a pool that starts with the first call."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, TypeVar

from handrail.errors import FilesError
from handrail.executor.files import FileEntry, FileMetadata, Progress
from handrail.filesystem import local
from handrail.filesystem.errors import os_text
from handrail.filesystem.pool import FilePool

T = TypeVar("T")

#: Seconds for one call; a file system that hangs longer is given up on.
DEADLINE = 60.0


class LocalFiles:
    """``Files`` on ``filesystem/``."""

    def __init__(self, parent: LocalFiles | None = None, *, follow: bool = True) -> None:
        self._parent = parent
        self._follow = follow
        self._pool: FilePool | None = None

    def without_links(self) -> LocalFiles:
        """Files for paths with resolved links: a change fails if a link has appeared in the path
        since then, so that a swap between a check and a write leads nowhere."""
        return LocalFiles(self, follow=False)

    async def run(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        if self._parent is not None:
            return await self._parent.run(work, *args, **options)
        if self._pool is None:
            self._pool = FilePool()
        return await self._pool.run(work, *args, deadline=DEADLINE, **options)

    def close(self) -> None:
        """Let the threads end; another call starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        data = await self.run(local.read_file, path)
        if progress is not None:
            progress(len(data), len(data))
        return data

    async def write(self, path: str, data: bytes, *, progress: Progress | None = None) -> None:
        await self.run(local.write_file, path, data, follow=self._follow)
        if progress is not None:
            progress(len(data), len(data))

    async def list(self, path: str) -> list[FileEntry]:
        found = await self.run(local.read_directory, path)
        entries = [FileEntry(os.fsdecode(e.name), e.is_directory, e.is_file) for e in found]
        return sorted(entries, key=lambda entry: entry.name)

    async def metadata(self, path: str) -> FileMetadata:
        found = await self.run(local.get_metadata, path)
        return FileMetadata(
            is_directory=found.is_directory,
            is_file=found.is_file,
            is_symlink=found.is_symlink,
            size=found.size,
            created_at_ms=found.created_at_ms,
            modified_at_ms=found.modified_at_ms,
        )

    async def canonical(self, path: str) -> str:
        return os.fsdecode(await self.run(local.canonicalize, path))

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        try:
            await self.run(local.create_directory, path, recursive=parents, follow=self._follow)
        except FilesError as error:
            # Without links the wire reports this also for a file at the path itself.
            if error.kind == "not_a_directory" and await self._is_file(path):
                text = os_text(errno.EEXIST)
                raise FilesError(text, kind="exists", path=path) from None
            raise

    async def _is_file(self, path: str) -> bool:
        try:
            return (await self.metadata(path)).is_file
        except FilesError:
            return False

    async def remove(self, path: str, *, recursive: bool = False, force: bool = False) -> None:
        follow = self._follow
        await self.run(local.remove, path, recursive=recursive, force=force, follow=follow)

    async def copy(self, source: str, destination: str, *, recursive: bool = False) -> None:
        await self.run(local.copy, source, destination, recursive=recursive)
