"""Making and removing names, except those that this process is told to refuse.

A sandbox covers a protected name that is missing by a placeholder on the host, which other programs
see.  A sandboxed file helper is code of ours, so it needs none: it is told the names and refuses
to make or remove them, and everything below.  The directory is a descriptor and the kernel says
where it lies, so no link leads around that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from handrail.filesystem.errors import os_error

_STAND = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_refused: frozenset[bytes] = frozenset()


def refuse(paths: Iterable[bytes]) -> None:
    """Refuse these absolute paths from now on, as a read-only file system does."""
    global _refused  # one process, one sandbox
    _refused = frozenset(paths)


def check(directory: int, name: bytes | str, refused: AbstractSet[bytes] | None = None) -> None:
    """Raise EROFS if this name in a directory is refused, by this process or by the caller."""
    if refused is None:
        refused = _refused
    if not refused:
        return
    path = os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), os.fsencode(name))
    while path not in refused:
        if path == b"/":
            return
        path = os.path.dirname(path)
    raise os_error(errno.EROFS)


def is_free(directory: int, name: bytes) -> bool:
    """Whether nothing at this name, above it or below it is refused."""
    if not _refused:
        return True
    path = os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), name)
    return not any(
        path == one or path.startswith(one.rstrip(b"/") + b"/") or one.startswith(path + b"/")
        for one in _refused
    )


def mkdir(path: bytes, *, dir_fd: int | None = None) -> None:
    """``os.mkdir``."""
    if not _refused:
        os.mkdir(path, dir_fd=dir_fd)
        return
    directory = _parent(path, dir_fd)
    try:
        check(directory, os.path.basename(path))
        os.mkdir(os.path.basename(path), dir_fd=directory)
    finally:
        os.close(directory)


def symlink(target: bytes, path: bytes, *, dir_fd: int | None = None) -> None:
    """``os.symlink``."""
    directory = _parent(path, dir_fd)
    try:
        check(directory, os.path.basename(path))
        os.symlink(target, os.path.basename(path), dir_fd=directory)
    finally:
        os.close(directory)


def unlink(name: bytes | str, *, dir_fd: int) -> None:
    """``os.unlink``."""
    check(dir_fd, name)
    os.unlink(name, dir_fd=dir_fd)


def rmdir(name: bytes | str, *, dir_fd: int) -> None:
    """``os.rmdir``."""
    check(dir_fd, name)
    os.rmdir(name, dir_fd=dir_fd)


def _parent(path: bytes, dir_fd: int | None) -> int:
    return os.open(os.path.dirname(path) or b".", _STAND, dir_fd=dir_fd)
