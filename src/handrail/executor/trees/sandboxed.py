"""Trees of this machine as sandboxed commands see them, by their file helper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.errors import FilesError
from handrail.executor.trees.base import Outcomes, Trees
from handrail.filesystem.trees.entry import Batch, Change, Contents, Names
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.names_listing import NamesPage
from handrail.sandboxed_files import trees

if TYPE_CHECKING:
    from handrail.executor.local_files import LocalSandboxedFiles


class SandboxedTrees(Trees):
    """``Trees`` in a sandbox."""

    def __init__(self, files: LocalSandboxedFiles) -> None:
        self._files = files

    async def list(self, root: str, *, after: bytes = b"", exclude: Sequence[str] = ()) -> Page:
        helper = await self._files.helper(root, writes=False)
        return await trees.list_tree(helper, root, after=after, exclude=exclude)

    async def names(
        self, root: str, *, after: tuple[bytes, bytes] | None = None, exclude: Sequence[str] = ()
    ) -> NamesPage:
        helper = await self._files.helper(root, writes=False)
        return await trees.list_names(helper, root, after=after, exclude=exclude)

    async def read(self, root: str, wanted: Sequence[Names]) -> Contents:
        return await trees.read_files(await self._files.helper(root, writes=False), root, wanted)

    async def read_part(self, root: str, path: bytes, offset: int, length: int) -> bytes:
        helper = await self._files.helper(root, writes=False)
        return await trees.read_part(helper, root, path, offset, length)

    async def write(self, root: str, batch: Batch) -> dict[int, FilesError]:
        return await trees.write_files(await self._files.helper(root, writes=True), root, batch)

    async def change(self, root: str, changes: Sequence[Change], data: bytes = b"") -> Outcomes:
        helper = await self._files.helper(root, writes=True)
        return await trees.make_changes(helper, root, changes, data)
