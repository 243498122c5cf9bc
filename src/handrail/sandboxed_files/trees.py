"""Calls about trees to a sandboxed helper."""

from __future__ import annotations

from collections.abc import Sequence

from handrail.errors import FilesError
from handrail.filesystem.trees.entry import Batch, Change, Contents, Names
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.loop_watch import LONGEST_WAIT, Watch
from handrail.filesystem.trees.names_listing import NamesPage
from handrail.filesystem.trees.tree_watch import Happened
from handrail.sandboxed_files import tree_frames
from handrail.sandboxed_files.frames import path_text
from handrail.sandboxed_files.pool import FileHelper


async def list_tree(
    helper: FileHelper, root: str, *, after: bytes = b"", exclude: Sequence[str] = ()
) -> Page:
    """A page of a tree; raises FilesError."""
    reply = await helper.call("listTree", root, path_text(after), list(exclude))
    return tree_frames.page_of(reply.result())


async def list_names(
    helper: FileHelper,
    root: str,
    *,
    after: tuple[bytes, bytes] | None = None,
    exclude: Sequence[str] = (),
) -> NamesPage:
    """A page of the names of a tree; raises FilesError."""
    place = None if after is None else [path_text(one) for one in after]
    reply = await helper.call("listNames", root, place, list(exclude))
    return tree_frames.names_of(reply.result())


async def read_files(helper: FileHelper, root: str, wanted: Sequence[Names]) -> Contents:
    """Content of many files; raises FilesError."""
    reply = await helper.call("readFiles", root, tree_frames.groups_head(wanted))
    return tree_frames.contents_of(reply.result(), reply.body)


async def read_part(helper: FileHelper, root: str, path: bytes, offset: int, length: int) -> bytes:
    """A part of one file; raises FilesError."""
    reply = await helper.call("readPart", root, path_text(path), offset, length)
    reply.result()
    return reply.body


async def write_files(helper: FileHelper, root: str, batch: Batch) -> dict[int, FilesError]:
    """Write many files; what failed, by position; raises FilesError."""
    reply = await helper.call("writeFiles", root, tree_frames.batch_head(batch), body=batch.data)
    return tree_frames.failed_of(reply.result())


async def make_changes(
    helper: FileHelper, root: str, changes: Sequence[Change], data: bytes | memoryview
) -> list[FilesError | None]:
    """Links, directories and parts of files; raises FilesError."""
    reply = await helper.call("makeChanges", root, tree_frames.changes_head(changes), body=data)
    failed = tree_frames.failed_of(reply.result())
    return [failed.get(index) for index in range(len(changes))]


class HelperWatch(Watch):
    """A watch of the files that sandboxed commands see, in their helper."""

    def __init__(self, helper: FileHelper, number: int) -> None:
        self._helper = helper
        self._number = number

    @classmethod
    async def lay(cls, helper: FileHelper, path: str, *, recursive: bool) -> HelperWatch:
        """Watch a path; raises FilesError."""
        number = (await helper.call("watch", path, recursive)).result()
        return cls(helper, number)

    async def read(self, wait: float) -> Happened:
        if not self._helper.usable:
            raise FilesError("the helper of this watch has ended", kind="not_found")
        wait_ms = int(min(wait, LONGEST_WAIT) * 1000)
        head = (await self._helper.call("watchRead", self._number, wait_ms)).result()
        return tree_frames.happened_of(head)

    async def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Let the helper close it."""
        if self._helper.usable:
            self._helper.tell("watchEnd", self._number)
