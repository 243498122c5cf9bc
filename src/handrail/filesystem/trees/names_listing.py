"""The names of a tree by directory, a page at a time and without state between pages.

For copies: what a file is is looked up when it is read, so nothing but directories and links is
looked at here.  That is a tenth of the time of ``listing``, and the whole tree is listed before the
first file is written: one that is copied into itself does not grow meanwhile.

A page begins after a name of a directory; the names of a directory come before the directories in
it.  Links are listed, never followed; only the root may be reached through one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from handrail.errors import FilesError
from handrail.filesystem import own_processes
from handrail.filesystem.errors import NativePath, native, os_errors
from handrail.filesystem.no_follow import open_no_follow
from handrail.filesystem.trees.entry import DIRECTORY, LINK, TreeEntry, joined, problem
from handrail.filesystem.trees.exclude import Exclude
from handrail.filesystem.trees.listing import entry_of

#: Names of one page, directories among them.
MOST_NAMES = 16384

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Directory(NamedTuple):
    """A directory with the names of its regular files."""

    entry: TreeEntry
    names: list[bytes]


class NamesPage(NamedTuple):
    """A part of a tree; ``more`` when another page follows the last name of the last directory."""

    root: TreeEntry
    directories: list[Directory]
    #: Links, and what is neither file nor directory.
    others: list[TreeEntry]
    #: Directories that could not be read.
    problems: list[FilesError]
    #: The directory and the name after which the next page begins; None: this was the last one.
    more: tuple[bytes, bytes] | None


def list_names(
    root: NativePath,
    *,
    after: tuple[bytes, bytes] | None = None,
    exclude: Sequence[str] = (),
    most: int = MOST_NAMES,
) -> NamesPage:
    """List what is below ``root`` behind the directory and name ``after``; raises FilesError."""
    raw = native(root)
    left_out = Exclude(exclude, raw)
    with os_errors(raw):
        fd = own_processes.open_path(raw, os.O_PATH | os.O_CLOEXEC)
        try:
            page = NamesPage(entry_of(b"", os.fstat(fd)), [], [], [], None)
            if page.root.kind != DIRECTORY:
                return page
            return _Walk(raw, fd, page, after, left_out, most).run()
        finally:
            os.close(fd)


class _Walk:
    """One page, depth first."""

    def __init__(
        self,
        raw: bytes,
        root: int,
        page: NamesPage,
        after: tuple[bytes, bytes] | None,
        exclude: Exclude,
        most: int,
    ) -> None:
        self._raw = raw
        self._root = root
        self._page = page
        self._after = after
        #: The components of the directory in which this page begins.
        self._begin = after[0].split(b"/") if after is not None and after[0] else []
        self._exclude = exclude
        self._room = most

    def run(self) -> NamesPage:
        pending = [b""]
        while pending:
            directory = pending.pop()
            if self._room <= 0:
                return self._page._replace(more=(directory, b""))
            try:
                below = self._read(directory)
            except OSError as error:
                if not directory:
                    raise
                self._page.problems.append(problem(self._raw, directory, error))
                continue
            if isinstance(below, tuple):
                return self._page._replace(more=below)
            pending += below
        return self._page

    def _read(self, directory: bytes) -> list[bytes] | tuple[bytes, bytes]:
        """Take a directory into the page; the directories in it, or where the page ends."""
        fd = open_no_follow(directory or b".", _DIRECTORY, dir_fd=self._root)
        try:
            files, others, below = self._scan(fd, directory)
            depth = len(directory.split(b"/")) if directory else 0
            if self._after is not None and directory == self._after[0]:
                files = [name for name in files if name > self._after[1]]
                others = [name for name in others if name > self._after[1]]
            elif len(self._begin) > depth and self._leads_there(directory):
                # On the way to where this page begins: what lies before was in another one.
                return [joined(directory, n) for n in reversed(below) if n >= self._begin[depth]]
            ends = len(files) + len(others) > self._room
            if ends:
                last = sorted(files + others)[self._room - 1]
                files = [name for name in files if name <= last]
                others = [name for name in others if name <= last]
            self._take(fd, directory, files, others)
            if ends:
                return directory, last
            self._room -= len(files) + len(others) + 1
            return [joined(directory, name) for name in reversed(below)]
        finally:
            os.close(fd)

    def _leads_there(self, directory: bytes) -> bool:
        names = directory.split(b"/") if directory else []
        return names == self._begin[: len(names)]

    def _take(self, fd: int, directory: bytes, files: list[bytes], others: list[bytes]) -> None:
        self._page.directories.append(Directory(entry_of(directory, os.fstat(fd)), files))
        for name in others:
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                entry = entry_of(joined(directory, name), status)
                if entry.kind == LINK:
                    entry = entry._replace(target=os.readlink(name, dir_fd=fd))
            except FileNotFoundError:
                continue  # removed meanwhile
            self._page.others.append(entry)

    def _scan(self, fd: int, directory: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """The names of files, others and directories, each sorted."""
        files: list[str] = []
        others: list[str] = []
        below: list[str] = []
        with os.scandir(fd) as found:
            for one in found:
                if one.is_file(follow_symlinks=False):
                    files.append(one.name)
                elif one.is_dir(follow_symlinks=False):
                    below.append(one.name)
                else:
                    others.append(one.name)
        return (
            self._wanted(files, directory),
            self._wanted(others, directory),
            self._wanted(below, directory),
        )

    def _wanted(self, names: list[str], directory: bytes) -> list[bytes]:
        if not names:
            return []
        found = os.fsencode("/".join(names)).split(b"/")
        if self._exclude:
            leaves_out = self._exclude.leaves_out
            found = [name for name in found if not leaves_out(joined(directory, name))]
        found.sort()
        return found
