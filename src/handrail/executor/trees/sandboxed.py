"""Trees of this machine as sandboxed commands see them, by their file helper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from handrail.executor.trees.base import Contents, Outcomes, Trees
from handrail.filesystem.trees.entry import Change, Wanted
from handrail.filesystem.trees.listing import Page
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

    async def read(self, root: str, wanted: Sequence[Wanted]) -> Contents:
        return await trees.read_files(await self._files.helper(root, writes=False), root, wanted)

    async def write(self, root: str, changes: Sequence[Change], data: bytes) -> Outcomes:
        helper = await self._files.helper(root, writes=True)
        return await trees.write_files(helper, root, changes, data)
