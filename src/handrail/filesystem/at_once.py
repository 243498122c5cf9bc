"""File calls for an event loop: answered from memory alone, else BlockingIOError.

Only if no link is on the way and the file system is on a device of this machine, or a tmpfs: there
nothing has to be waited for once the names are in memory.  Whatever else a call finds, a caller
that may wait asks again.

``root``: the root directory of other mounts, in which the kernel resolves the path instead of ours.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail.filesystem import syscalls
from handrail.filesystem.errors import NativePath, native, os_errors
from handrail.filesystem.regular_file import CAREFUL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.filesystem.local import Metadata

    Found = tuple[int, int, int, int, int]

_RULES = syscalls.RESOLVE_CACHED | syscalls.RESOLVE_NO_SYMLINKS
_RULES_BELOW = _RULES | syscalls.RESOLVE_IN_ROOT


def get_metadata(path: NativePath, *, root: int | None = None) -> Metadata:
    """``local.get_metadata`` at once."""
    from handrail.filesystem.local import Metadata

    fd, (mode, size, created, modified, _) = _found(native(path), root)
    os.close(fd)
    return Metadata(stat.S_ISDIR(mode), stat.S_ISREG(mode), False, size, created, modified)


def canonicalize(path: NativePath, *, root: int | None = None) -> bytes:
    """``local.canonicalize`` at once: no link is on the way, so the path is what it is."""
    raw = native(path)
    if os.path.normpath(raw) != raw or raw.startswith(b"//"):
        raise BlockingIOError
    os.close(_found(raw, root)[0])
    return raw


def read_file(path: NativePath, most: int, *, root: int | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes, at once."""
    fd, (mode, size, _, _, device) = _found(native(path), root)
    try:
        # One that claims to be empty may not be.
        if not stat.S_ISREG(mode) or not 0 < size <= most:
            raise BlockingIOError
        # Checked before it is opened, which on other file systems may take a while.
        file = os.open(b"/proc/self/fd/%d" % fd, os.O_RDONLY | CAREFUL)
    except OSError:
        raise BlockingIOError from None
    finally:
        os.close(fd)
    try:
        data = bytearray(size)
        # Without a device it is a tmpfs, which is in memory and takes no RWF_NOWAIT.
        read = os.preadv(file, [data], 0, os.RWF_NOWAIT if device else 0)
    except OSError:
        raise BlockingIOError from None
    finally:
        os.close(file)
    if read < size:
        raise BlockingIOError  # the rest is not in memory, or it shrank just now
    return bytes(data)


def _found(raw: bytes, root: int | None) -> tuple[int, Found]:
    """Open a path, for its name alone, and tell what is there."""
    rules = _RULES if root is None else _RULES_BELOW
    if not syscalls.supports(rules):
        raise BlockingIOError
    try:
        fd = syscalls.openat2(syscalls.AT_FDCWD if root is None else root, raw, os.O_PATH, 0, rules)
    except OSError as error:
        if error.errno == errno.ENOENT:
            with os_errors(raw):
                raise
        raise BlockingIOError from None
    found = syscalls.statx(fd, cached=True)
    if found is None or (found[4] == 0 and not syscalls.is_tmpfs(fd)):
        os.close(fd)
        raise BlockingIOError
    return fd, found
