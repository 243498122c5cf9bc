"""Trees of this machine, in threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.errors import FilesError
from handrail.executor.trees.base import Outcomes, Trees
from handrail.filesystem.trees import (
    file_batches,
    listing,
    names_listing,
    reading,
    writing,
)
from handrail.filesystem.trees.entry import Batch, Change, Contents, Names

if TYPE_CHECKING:
    from handrail.executor.local_files import LocalFiles


class LocalTrees(Trees):
    """``Trees`` on ``filesystem/trees``."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files

    async def list(
        self, root: str, *, after: bytes = b"", exclude: Sequence[str] = ()
    ) -> listing.Page:
        return await self._files.run(listing.list_tree, root, after=after, exclude=exclude)

    async def names(
        self, root: str, *, after: tuple[bytes, bytes] | None = None, exclude: Sequence[str] = ()
    ) -> names_listing.NamesPage:
        work = names_listing.list_names
        return await self._files.run(work, root, after=after, exclude=exclude)

    async def read(self, root: str, wanted: Sequence[Names]) -> Contents:
        return await self._files.run(reading.read_files, root, wanted)

    async def read_part(self, root: str, path: bytes, offset: int, length: int) -> bytes:
        return await self._files.run(reading.read_part, root, path, offset, length)

    async def write(self, root: str, batch: Batch) -> dict[int, FilesError]:
        return await self._files.run(file_batches.write_files, root, batch)

    async def change(self, root: str, changes: Sequence[Change], data: bytes = b"") -> Outcomes:
        return await self._files.run(writing.make_changes, root, changes, data)
