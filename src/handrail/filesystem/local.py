"""The interface of this package: what can be done with one path.

Describing and writing live here; the rest is exported from the other modules.  All of it blocks:
call it through ``pool``.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from handrail.filesystem import own_processes, syscalls
from handrail.filesystem.copying import copy
from handrail.filesystem.directories import (
    DirectoryEntry,
    create_directory,
    read_directory,
)
from handrail.filesystem.errors import (
    CONTAINS_LINK,
    NativePath,
    native,
    os_errors,
    refusal,
)
from handrail.filesystem.no_follow import open_no_follow
from handrail.filesystem.regular_file import ReadPlan, read_file
from handrail.filesystem.removal import remove
from handrail.filesystem.replacement import Replacement

__all__ = [
    "DirectoryEntry",
    "Metadata",
    "ReadPlan",
    "canonicalize",
    "copy",
    "create_directory",
    "get_metadata",
    "read_directory",
    "read_file",
    "remove",
    "write_file",
]


class Metadata(NamedTuple):
    """What a path leads to; only ``is_symlink`` is about the path itself."""

    is_directory: bool
    is_file: bool
    is_symlink: bool
    size: int
    created_at_ms: int
    modified_at_ms: int


def write_file(
    path: NativePath,
    data: bytes | bytearray | memoryview,
    *,
    follow: bool = True,
    sync: bool = False,
) -> None:
    """Make ``data`` the content of ``path``: entirely, or not at all.

    Writes through a link (also a dangling one) when ``follow``; otherwise a link anywhere is
    an error.  The mode of an existing file stays.  See ``replacement`` for the rest.
    """
    raw = native(path)
    with os_errors(raw, follow=follow):
        replacement = Replacement(raw, follow=follow)
        try:
            replacement.write(data)
            replacement.commit(sync=sync)
        finally:
            replacement.discard()


def get_metadata(path: NativePath, *, follow: bool = True) -> Metadata:
    """Describe ``path``.  Without ``follow`` a link as the last name is invalid input."""
    raw = native(path)
    with os_errors(raw, follow=follow):
        if follow:
            is_link = stat.S_ISLNK(os.lstat(raw).st_mode)
            fd = own_processes.open_path(raw, os.O_PATH)
        else:
            is_link = False
            fd = open_no_follow(raw, os.O_PATH | os.O_NOFOLLOW)
        try:
            mode, size, created, modified, _ = syscalls.statx(fd) or _status(fd)
        finally:
            os.close(fd)
    if stat.S_ISLNK(mode):
        raise refusal(CONTAINS_LINK, raw)
    return Metadata(stat.S_ISDIR(mode), stat.S_ISREG(mode), is_link, size, created, modified)


def _status(fd: int) -> tuple[int, int, int, int, int]:
    """Version of ``syscalls.statx`` for a system without it."""
    found = os.fstat(fd)
    modified = max(0, found.st_mtime_ns // 1_000_000)
    return found.st_mode, found.st_size, 0, modified, os.major(found.st_dev)


def canonicalize(path: NativePath) -> bytes:
    """The absolute path, without links and dots, of something that exists."""
    raw = native(path)
    with os_errors(raw):
        os.close(own_processes.open_path(raw, os.O_PATH))
        return os.path.realpath(raw, strict=True)
