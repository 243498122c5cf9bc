"""One file or one directory at a time: the face of this folder.

Listing, describing, creating and writing live here; reading, copying and removing are
exported from their own modules.  All of it blocks: call it through ``pool``.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import NamedTuple

from handrail.filesystem import kernel
from handrail.filesystem.copying import copy
from handrail.filesystem.failure import (
    CONTAINS_LINK,
    NativePath,
    native,
    os_error,
    os_errors,
    refusal,
)
from handrail.filesystem.no_follow import STAND, open_no_follow, open_parent
from handrail.filesystem.regular import ReadPlan, iter_file, read_file
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
    "iter_file",
    "read_directory",
    "read_file",
    "remove",
    "write_file",
]

#: The longest directory that is listed in one answer (exec-server 0.166.0).
DIRECTORY_LIMIT = 50_000


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a path leads to; only ``is_symlink`` is about the path itself."""

    is_directory: bool
    is_file: bool
    is_symlink: bool
    size: int
    created_at_ms: int
    modified_at_ms: int


class DirectoryEntry(NamedTuple):
    """One name of a directory; links are described by what they lead to."""

    name: bytes
    is_directory: bool
    is_file: bool


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


def create_directory(path: NativePath, *, recursive: bool = True, follow: bool = True) -> None:
    """Make a directory; ``recursive`` makes parents too and accepts an existing one."""
    raw = native(path)
    with os_errors(raw, follow=follow):
        if recursive:
            if follow:
                os.makedirs(raw, exist_ok=True)
            else:
                _make_directories(raw)
            return
        if raw == b"/":
            raise os_error(errno.EEXIST)
        parent, name = open_parent(raw, follow=follow)
        try:
            os.mkdir(name, dir_fd=parent)
        finally:
            os.close(parent)


def get_metadata(path: NativePath, *, follow: bool = True) -> Metadata:
    """Describe ``path``.  Without ``follow`` a link as the last name is invalid input."""
    raw = native(path)
    with os_errors(raw, follow=follow):
        if follow:
            is_link = stat.S_ISLNK(os.lstat(raw).st_mode)
            fd = os.open(raw, os.O_PATH)
        else:
            is_link = False
            fd = open_no_follow(raw, os.O_PATH | os.O_NOFOLLOW)
        try:
            status = os.fstat(fd)
            created = kernel.birth_ms(fd)
        finally:
            os.close(fd)
    if stat.S_ISLNK(status.st_mode):
        raise refusal(CONTAINS_LINK, raw)
    return Metadata(
        is_directory=stat.S_ISDIR(status.st_mode),
        is_file=stat.S_ISREG(status.st_mode),
        is_symlink=is_link,
        size=status.st_size,
        created_at_ms=created,
        modified_at_ms=max(0, status.st_mtime_ns // 1_000_000),
    )


def canonicalize(path: NativePath) -> bytes:
    """The absolute path without links and dots of something that exists."""
    raw = native(path)
    with os_errors(raw):
        return os.path.realpath(raw, strict=True)


def read_directory(path: NativePath, *, limit: int = DIRECTORY_LIMIT) -> list[DirectoryEntry]:
    """The names in a directory, in the order of the system.

    Links that lead nowhere (or nowhere we may look) are left out, as the peer does.
    """
    raw = native(path)
    entries: list[DirectoryEntry] = []
    beyond = 0
    with os_errors(raw), os.scandir(raw) as found:
        for entry in found:
            if entry.is_symlink():
                try:
                    mode = entry.stat().st_mode
                except OSError:
                    continue
                kinds = stat.S_ISDIR(mode), stat.S_ISREG(mode)
            else:
                kinds = (
                    entry.is_dir(follow_symlinks=False),
                    entry.is_file(follow_symlinks=False),
                )
            if len(entries) < limit:
                entries.append(DirectoryEntry(entry.name, *kinds))
            else:
                beyond += 1  # counted for the sentence, not kept
    if beyond:
        total = len(entries) + beyond
        text = f"fs/readDirectory returned {total} entries; limit is {limit}"
        raise refusal(text, raw, kind="other")
    return entries


def _make_directories(raw: bytes) -> None:
    """``mkdir -p`` that stands on a descriptor at each step, so no link is crossed."""
    absolute = raw.startswith(b"/")
    here = os.open(b"/" if absolute else b".", STAND)
    try:
        for name in raw.split(b"/"):
            if name in (b"", b"."):
                continue
            try:
                below = os.open(name, STAND | os.O_NOFOLLOW, dir_fd=here)
            except FileNotFoundError:
                try:
                    os.mkdir(name, dir_fd=here)
                except FileExistsError:
                    pass  # somebody else made it just now; what it is shows the next open
                below = os.open(name, STAND | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
