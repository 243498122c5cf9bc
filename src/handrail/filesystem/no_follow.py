"""Opening without crossing a link.

Checking a path and then using it leaves a gap in which another process swaps a directory for a
link.  So nothing here checks: the kernel resolves and opens in one step (``openat2``, refusing
links in every component), or, where that is missing, the path is walked component by component with
O_NOFOLLOW, each step relative to the fd of the last.  Callers go on with the fd and never use the
name again.

Everything raises plain OSError: ELOOP for a link at the end, ELOOP or ENOTDIR (the walk) for one on
the way.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail.filesystem import own_processes, syscalls
from handrail.filesystem.errors import NativePath, native, os_error, refusal

#: Flags for a directory that is only a starting point: needs no read permission.
STAND = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_NO_LINKS = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS


def open_no_follow(
    path: NativePath, flags: int, mode: int = 0o666, *, dir_fd: int | None = None
) -> int:
    """Open ``path``; a link in any component is an error.

    With O_PATH | O_NOFOLLOW a link as the *last* component is opened itself, so that the
    caller can tell what it is.  Relative paths start at ``dir_fd`` or the working directory.
    """
    raw = native(path)
    if syscalls.supports(_NO_LINKS):
        start = syscalls.AT_FDCWD if dir_fd is None else dir_fd
        return own_processes.checked(syscalls.openat2(start, raw, flags, mode, _NO_LINKS))
    return own_processes.checked(_walk_and_open(raw, flags, mode, dir_fd))


def open_parent(path: NativePath, *, follow: bool, dir_fd: int | None = None) -> tuple[int, bytes]:
    """The parent directory of ``path`` (O_PATH, the caller closes it) and the last name.

    ``follow`` is about the way to the directory; the name itself is not resolved.
    """
    raw = native(path)
    parent, name = os.path.split(raw)
    if not name:
        raise refusal("path must name an entry", raw)
    parent = parent or b"."
    if follow:
        return own_processes.open_path(parent, STAND, dir_fd=dir_fd), name
    return open_no_follow(parent, STAND, dir_fd=dir_fd), name


def _walk_and_open(raw: bytes, flags: int, mode: int, dir_fd: int | None) -> int:
    absolute = raw.startswith(b"/")
    names = [name for name in raw.split(b"/") if name not in (b"", b".")]
    here = os.open(b"/" if absolute else b".", STAND, dir_fd=None if absolute else dir_fd)
    try:
        for name in names[:-1]:
            # O_DIRECTORY is what makes a link fail here: without it, O_PATH | O_NOFOLLOW would open
            # the link itself and the next step would fail less clearly.
            below = os.open(name, STAND | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        last = names[-1] if names else b"."
        fd = os.open(last, flags | os.O_NOFOLLOW, mode, dir_fd=here)
    finally:
        os.close(here)
    if flags & os.O_PATH and not flags & os.O_NOFOLLOW and stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise os_error(errno.ELOOP)
    return fd
