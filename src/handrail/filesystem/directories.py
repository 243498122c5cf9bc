"""Directories: listing one, making one."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from handrail.filesystem import names, own_processes
from handrail.filesystem.errors import NativePath, native, os_error, os_errors, refusal
from handrail.filesystem.no_follow import STAND, open_parent

#: The longest directory that is listed in one answer (exec-server 0.166.0).
DIRECTORY_LIMIT = 50_000


class DirectoryEntry(NamedTuple):
    """One name of a directory; links are described by their target."""

    name: bytes
    is_directory: bool
    is_file: bool


def read_directory(path: NativePath, *, limit: int = DIRECTORY_LIMIT) -> list[DirectoryEntry]:
    """The names in a directory, in the order of the system.

    Links with a missing or unreadable target are left out, as the peer does.
    """
    raw = native(path)
    entries: list[DirectoryEntry] = []
    beyond = 0
    with os_errors(raw):
        own_processes.refuse_directory(raw)
    with os_errors(raw), os.scandir(raw) as found:
        for entry in found:
            if entry.is_symlink():
                try:
                    mode = entry.stat().st_mode
                except OSError:
                    continue
                is_directory, is_file = stat.S_ISDIR(mode), stat.S_ISREG(mode)
            else:
                is_file = entry.is_file(follow_symlinks=False)
                is_directory = not is_file and entry.is_dir(follow_symlinks=False)
            if len(entries) < limit:
                entries.append(DirectoryEntry(entry.name, is_directory, is_file))
            else:
                beyond += 1  # counted for the sentence, not kept
    if beyond:
        total = len(entries) + beyond
        text = f"fs/readDirectory returned {total} entries; limit is {limit}"
        raise refusal(text, raw, kind="other")
    return entries


def create_directory(path: NativePath, *, recursive: bool = True, follow: bool = True) -> None:
    """Make a directory; ``recursive`` makes parents too and accepts an existing one."""
    raw = native(path)
    with os_errors(raw, follow=follow):
        if recursive:
            if follow:
                make_all(raw)
            else:
                _make_all_no_follow(raw)
            return
        if raw == b"/":
            raise os_error(errno.EEXIST)
        parent, name = open_parent(raw, follow=follow)
        try:
            names.mkdir(name, dir_fd=parent)
        finally:
            os.close(parent)


def make_all(raw: bytes) -> None:
    """Make a directory and what is missing above it, going through links; raises OSError.

    Not ``os.makedirs``: that recurses, and reports a dangling link on the way as its child's error.
    """
    missing = [raw]
    there: set[bytes] = set()
    while missing:
        try:
            names.mkdir(missing[-1])
        except FileNotFoundError:
            above = os.path.dirname(missing[-1])
            # Everything above existed: another process removes it, or it refuses entries, like
            # /proc.
            if not above or above == missing[-1] or above in there:
                raise
            missing.append(above)
            continue
        except OSError:
            if not os.path.isdir(missing[-1]):
                raise
        there.add(missing.pop())


def _make_all_no_follow(raw: bytes) -> None:
    """``make_all`` that opens each directory relative to the last, so no link is crossed."""
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
                    names.mkdir(name, dir_fd=here)
                except FileExistsError:
                    pass  # another process made it just now; the next open shows what it is
                below = os.open(name, STAND | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
