"""The contract for trees of an executor's machine, in bounded calls.

``root`` is absolute; paths below it are bytes, relative.  Each call may be repeated: doing it twice
leads to the same state.  A failure of one file is in the answer; FilesError is raised when the root
cannot be used, ExecutorTransportFailed when the connection is lost for good.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from handrail.errors import FilesError
from handrail.filesystem.trees.entry import Batch, Change, Contents, Names
from handrail.filesystem.trees.listing import Page
from handrail.filesystem.trees.names_listing import NamesPage

#: What went wrong with each change; None: it was made.
Outcomes = list[FilesError | None]


class Trees(Protocol):
    """Whole trees of one machine."""

    async def list(self, root: str, *, after: bytes = b"", exclude: Sequence[str] = ()) -> Page:
        """A page of what is below a directory; behind ``after``, without what is excluded."""

    async def names(
        self, root: str, *, after: tuple[bytes, bytes] | None = None, exclude: Sequence[str] = ()
    ) -> NamesPage:
        """A page of the names below a directory; behind the directory and name ``after``."""

    async def read(self, root: str, wanted: Sequence[Names]) -> Contents:
        """Content of many files below a directory."""

    async def read_part(self, root: str, path: bytes, offset: int, length: int) -> bytes:
        """A part of one file, shorter where it ends; raises FilesError."""

    async def write(self, root: str, batch: Batch) -> dict[int, FilesError]:
        """Write many files below a directory that exists; what failed, by position."""

    async def change(self, root: str, changes: Sequence[Change], data: bytes = b"") -> Outcomes:
        """Make links and directories, and parts of large files, below a directory that exists."""


async def pages(trees: Trees, root: str, exclude: Sequence[str] = ()) -> AsyncIterator[Page]:
    """All pages of what is below a directory, a call for each."""
    after = b""
    while True:
        page = await trees.list(root, after=after, exclude=exclude)
        yield page
        if not page.more or not page.entries:
            return
        after = page.entries[-1].path


async def names_pages(trees: Trees, root: str, exclude: Sequence[str]) -> AsyncIterator[NamesPage]:
    """All pages of the names below a directory, a call for each."""
    after = None
    while True:
        page = await trees.names(root, after=after, exclude=exclude)
        yield page
        if page.more is None or page.more == after:
            return
        after = page.more
