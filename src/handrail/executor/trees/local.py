"""Trees of this machine, in threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.executor.trees.base import Contents, Outcomes, Trees
from handrail.filesystem.trees import listing, reading, writing
from handrail.filesystem.trees.entry import Change, Wanted

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

    async def read(self, root: str, wanted: Sequence[Wanted]) -> Contents:
        return await self._files.run(reading.read_files, root, wanted)

    async def write(self, root: str, changes: Sequence[Change], data: bytes) -> Outcomes:
        return await self._files.run(writing.write_files, root, changes, data)
