"""Removing: names, never the target of a link.

A tree is removed by fds.  Each directory is opened with O_NOFOLLOW relative to its parent, emptied
through its own fd, and left through ``..``, which must still be the directory we came from.  So a
directory swapped for a link, at any moment, costs at most the link; and a tree may be deeper than
PATH_MAX or the limit of open files.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from handrail.filesystem import names
from handrail.filesystem.errors import (
    CONTAINS_LINK,
    NativePath,
    native,
    os_error,
    os_errors,
    refusal,
)
from handrail.filesystem.no_follow import open_parent

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level(NamedTuple):
    name: str | bytes
    identity: tuple[int, int]
    #: Directories in it that are still to be removed.
    below: list[str]


def remove(
    path: NativePath, *, recursive: bool = True, force: bool = True, follow: bool = True
) -> None:
    """Remove a file, a link or a directory.

    ``force`` accepts that there is nothing to remove, and hides no other error.  A link as the
    last name is removed itself; without ``follow`` it is refused, and so is one on the way.
    """
    raw = native(path)
    with os_errors(raw, follow=follow):
        try:
            parent, name = open_parent(raw, follow=follow)
            try:
                _remove_entry(parent, name, raw, recursive, follow)
            finally:
                os.close(parent)
        except FileNotFoundError:
            if not force:
                raise


def _remove_entry(parent: int, name: bytes, raw: bytes, recursive: bool, follow: bool) -> None:
    if name in (b".", b".."):
        # The kernel refuses to remove these names, but only after we had emptied them.
        raise os_error(errno.EINVAL)
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode) and not follow:
        raise refusal(CONTAINS_LINK, raw)
    if not stat.S_ISDIR(mode):
        names.unlink(name, dir_fd=parent)
    elif not recursive:
        names.rmdir(name, dir_fd=parent)
    else:
        _empty(parent, name)
        names.rmdir(name, dir_fd=parent)


def _empty(parent: int, name: bytes) -> None:
    """Remove everything below ``name``, without recursion and with two fds."""
    here = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        levels = [_Level(name, _identity(here), _unlink_files(here))]
        while True:
            if levels[-1].below:
                child = levels[-1].below.pop()
                beneath = _descend(here, child)
                if beneath is None:
                    continue
                os.close(here)
                here = beneath
                levels.append(_Level(child, _identity(here), _unlink_files(here)))
                continue
            done = levels.pop()
            if not levels:
                return
            above = os.open("..", _DIRECTORY, dir_fd=here)
            os.close(here)
            here = above
            if _identity(here) != levels[-1].identity:
                # Another process moved the directory away meanwhile: the parent is not ours to
                # empty.
                raise os_error(errno.EBUSY)
            _forget(done.name, here)
    finally:
        os.close(here)


def _descend(here: int, child: str) -> int | None:
    """Open the directory ``child``; None when it is gone or no directory (then removed)."""
    try:
        return os.open(child, _DIRECTORY, dir_fd=here)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        names.unlink(child, dir_fd=here)
        return None


def _unlink_files(here: int) -> list[str]:
    """Unlink all but directories; return the names of these."""
    with os.scandir(here) as found:
        # Listed before anything is unlinked: some file systems skip names otherwise.
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    directories = []
    for name, is_directory in entries:
        if is_directory:
            directories.append(name)
            continue
        try:
            names.unlink(name, dir_fd=here)
        except FileNotFoundError:
            pass
    return directories


def _forget(name: str | bytes, here: int) -> None:
    try:
        names.rmdir(name, dir_fd=here)
    except FileNotFoundError:
        pass


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
