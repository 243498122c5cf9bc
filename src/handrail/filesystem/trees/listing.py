"""The names of a tree, sorted, a page at a time and without state between pages.

A page begins after the last path of the one before: directories that lie before it are not read
again.  Links are listed, never followed; only the root may be reached through one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from handrail.errors import FilesError
from handrail.filesystem import own_processes
from handrail.filesystem.errors import NativePath, native, os_errors
from handrail.filesystem.no_follow import open_no_follow
from handrail.filesystem.trees.entry import (
    DIRECTORY,
    FILE,
    LINK,
    MODE_BITS,
    OTHER,
    TreeEntry,
    problem,
)
from handrail.filesystem.trees.exclude import Exclude

#: Entries of one page.
MOST_ENTRIES = 4096

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY, stat.S_IFLNK: LINK}


class Page(NamedTuple):
    """A part of a tree; ``more`` when another page follows the last entry."""

    root: TreeEntry
    entries: list[TreeEntry]
    #: Directories that could not be read.
    problems: list[FilesError]
    more: bool


def list_tree(
    root: NativePath,
    *,
    after: bytes = b"",
    exclude: Sequence[str] = (),
    most: int = MOST_ENTRIES,
) -> Page:
    """List the entries below ``root`` that follow the path ``after``; raises FilesError."""
    raw = native(root)
    left_out = Exclude(exclude, raw)
    with os_errors(raw):
        fd = own_processes.open_path(raw, os.O_PATH | os.O_CLOEXEC)
        try:
            found = entry_of(b"", os.fstat(fd))
            page = Page(found, [], [], False)
            if found.kind != DIRECTORY:
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
        page: Page,
        after: bytes,
        exclude: Exclude,
        most: int,
    ) -> None:
        self._raw = raw
        self._root = root
        self._page = page
        self._after = after.split(b"/") if after else []
        self._exclude = exclude
        self._most = most

    def run(self) -> Page:
        levels = [self._read(b"", first=True)]
        entries = self._page.entries
        while levels:
            if not levels[-1]:
                levels.pop()
                continue
            entry = levels[-1].pop()
            begun = bool(self._after) and not self._is_behind(entry.path)
            if not begun:
                if len(entries) >= self._most:
                    return self._page._replace(more=True)
                entries.append(entry)
            if entry.kind == DIRECTORY and (not begun or self._leads_there(entry.path)):
                levels.append(self._read(entry.path))
        return self._page

    def _is_behind(self, path: bytes) -> bool:
        return path.split(b"/") > self._after

    def _leads_there(self, path: bytes) -> bool:
        names = path.split(b"/")
        return names == self._after[: len(names)]

    def _read(self, directory: bytes, *, first: bool = False) -> list[TreeEntry]:
        """The entries of a directory, the last one first."""
        try:
            fd = open_no_follow(directory or b".", _DIRECTORY, dir_fd=self._root)
            try:
                return self._scan(fd, directory + b"/" if directory else b"")
            finally:
                os.close(fd)
        except OSError as error:
            if first:
                raise
            self._page.problems.append(problem(self._raw, directory, error))
            return []

    def _scan(self, fd: int, prefix: bytes) -> list[TreeEntry]:
        found = []
        exclude = self._exclude
        with os.scandir(fd) as names:
            for name in names:
                path = prefix + os.fsencode(name.name)
                if exclude and exclude.leaves_out(path):
                    continue
                try:
                    status = name.stat(follow_symlinks=False)
                    entry = entry_of(path, status)
                    if entry.kind == LINK:
                        entry = entry._replace(
                            target=os.readlink(os.fsencode(name.name), dir_fd=fd)
                        )
                except FileNotFoundError:
                    continue  # removed meanwhile
                found.append(entry)
        found.sort(reverse=True)
        return found


def entry_of(path: bytes, status: os.stat_result) -> TreeEntry:
    """Describe a name by its status; without the target of a link."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), OTHER)
    size = status.st_size if kind == FILE else 0
    return TreeEntry(path, kind, status.st_mode & MODE_BITS, status.st_mtime_ns, size)
