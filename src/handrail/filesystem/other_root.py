"""File calls below the root directory of other mounts: what needs no more than one name.

``root`` is a descriptor of that directory, and the kernel resolves a path below it in the mounts
it belongs to: what they hide is hidden, what they show for reading alone cannot be changed.  No
link is followed, for its target would be looked for from our own root: the directory of a name is
opened in one step, and then only that descriptor and the name are used.

Done is what is ordinary.  For everything else BlockingIOError is raised, before anything was
changed, and a process that lives in those mounts is asked instead: a link, a tree, a name that is
refused or hidden, a file with set-id bits or of another owner, every error but a missing name.
So is a file system without a device of this machine, other than a tmpfs: one that hangs must not
take the threads that others need, and one of them is ``/proc``.  Paths are therefore resolved from
memory alone.  The rest blocks: call it in a thread.

``briefly``: it is called on an event loop.  Then only little is written, copied, freed or listed,
and only in a tmpfs: a disk may have to be waited for, and nothing tells beforehand.  ``root`` may
be None: our own root directory, with the rights that this process has.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Set as AbstractSet

from handrail.filesystem import names, syscalls
from handrail.filesystem.content import copy_content
from handrail.filesystem.directories import DIRECTORY_LIMIT, DirectoryEntry
from handrail.filesystem.errors import NativePath, native, os_errors
from handrail.filesystem.no_follow import STAND
from handrail.filesystem.regular_file import CAREFUL
from handrail.filesystem.replacement import SET_ID, Replacement

#: Bytes that are written, copied or freed, and names that are listed, at most on an event loop.
BRIEF_SIZE = 64 * 1024
_BRIEF_LIST = 256

_RULES = syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_CACHED
_RULES_BELOW = _RULES | syscalls.RESOLVE_IN_ROOT
_LIST = os.O_RDONLY | os.O_DIRECTORY | CAREFUL


def read_directory(
    path: NativePath, *, root: int | None, briefly: bool = False
) -> list[DirectoryEntry]:
    """``directories.read_directory`` of a directory without links."""
    directory = _open(native(path), STAND, root, briefly)
    most = _BRIEF_LIST if briefly else DIRECTORY_LIMIT
    fd = -1
    try:
        fd = os.open(b".", _LIST, dir_fd=directory)
        found: list[DirectoryEntry] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_symlink() or len(found) >= most:
                    raise BlockingIOError
                is_file = entry.is_file(follow_symlinks=False)
                is_directory = not is_file and entry.is_dir(follow_symlinks=False)
                found.append(DirectoryEntry(os.fsencode(entry.name), is_directory, is_file))
        return found
    except OSError:
        raise BlockingIOError from None
    finally:
        os.close(directory)
        if fd >= 0:
            os.close(fd)


def create_directory(
    path: NativePath,
    *,
    recursive: bool,
    root: int | None,
    refused: AbstractSet[bytes],
    briefly: bool = False,
) -> None:
    """``directories.create_directory`` in a directory that exists."""
    parent, name = _open_parent(native(path), root, refused, briefly)
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        if not recursive or not _is_directory(parent, name):
            raise BlockingIOError from None
    except OSError:
        raise BlockingIOError from None
    finally:
        os.close(parent)


def remove(
    path: NativePath,
    *,
    force: bool,
    root: int | None,
    refused: AbstractSet[bytes],
    briefly: bool = False,
) -> None:
    """``removal.remove`` of a file or an empty directory."""
    raw = native(path)
    try:
        parent, name = _open_parent(raw, root, refused, briefly)
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode) or (briefly and _frees_much(status)):
                raise BlockingIOError
            if stat.S_ISDIR(status.st_mode):
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
        finally:
            os.close(parent)
    except FileNotFoundError:
        if not force:
            with os_errors(raw):
                raise
    except OSError:
        raise BlockingIOError from None


def write_file(
    path: NativePath,
    data: bytes | bytearray | memoryview,
    *,
    root: int | None,
    refused: AbstractSet[bytes],
    briefly: bool = False,
) -> None:
    """``local.write_file`` of a file that a rename can replace."""
    if briefly and len(data) > BRIEF_SIZE:
        raise BlockingIOError
    parent, name = _open_parent(native(path), root, refused, briefly)
    try:
        replacement = Replacement(name, follow=False, dir_fd=parent, by_rename=True)
        try:
            if briefly and replacement.old is not None and _frees_much(replacement.old):
                raise BlockingIOError
            replacement.write(data)
            replacement.commit()
        finally:
            replacement.discard()
    except OSError:
        raise BlockingIOError from None
    finally:
        os.close(parent)


def copy(
    source: NativePath,
    destination: NativePath,
    *,
    root: int | None,
    refused: AbstractSet[bytes],
    briefly: bool = False,
) -> None:
    """``copying.copy`` of a regular file."""
    fd, status = _open_regular(native(source), root, briefly)
    try:
        data = _read_brief(fd, status) if briefly else b""
        parent, name = _open_parent(native(destination), root, refused, briefly)
        try:
            mode = stat.S_IMODE(status.st_mode)
            replacement = Replacement(name, mode=mode, follow=False, dir_fd=parent, by_rename=True)
            try:
                if replacement.old is not None and os.path.samestat(replacement.old, status):
                    return
                if briefly:
                    if replacement.old is not None and _frees_much(replacement.old):
                        raise BlockingIOError
                    replacement.write(data)
                else:
                    copy_content(fd, replacement.fd)
                replacement.commit()
            finally:
                replacement.discard()
        finally:
            os.close(parent)
    except OSError:
        raise BlockingIOError from None
    finally:
        os.close(fd)


def _open(raw: bytes, flags: int, root: int | None, briefly: bool) -> int:
    """Open a path without links."""
    rules = _RULES if root is None else _RULES_BELOW
    if not raw.startswith(b"/") or not syscalls.supports(rules):
        raise BlockingIOError
    try:
        fd = syscalls.openat2(syscalls.AT_FDCWD if root is None else root, raw, flags, 0, rules)
    except OSError:
        raise BlockingIOError from None
    on_disk = not briefly and os.major(os.fstat(fd).st_dev)
    if not on_disk and not syscalls.is_tmpfs(fd):
        os.close(fd)
        raise BlockingIOError
    return fd


def _frees_much(status: os.stat_result) -> bool:
    """Whether it may take a while until the content of a file has gone."""
    return max(status.st_size, status.st_blocks * 512) > BRIEF_SIZE and stat.S_ISREG(status.st_mode)


def _read_brief(fd: int, status: os.stat_result) -> bytes:
    """The content of a small file."""
    # One that claims to be empty may not be.
    if not 0 < status.st_size <= BRIEF_SIZE:
        raise BlockingIOError
    data = os.pread(fd, status.st_size + 1, 0)
    if len(data) != status.st_size:
        raise BlockingIOError  # its size changed just now
    return data


def _open_parent(
    raw: bytes, root: int | None, refused: AbstractSet[bytes], briefly: bool
) -> tuple[int, bytes]:
    """The directory of a name that may be made or removed, and the name.

    A process may not remove or replace a mount point of its own namespace (EBUSY); of another
    namespace it may, and the kernel takes the mount away.  So such names are left to the helper.
    They are not moved meanwhile: to the commands of this sandbox they are mount points as well.
    """
    above, name = os.path.split(raw)
    if name in (b"", b".", b".."):
        raise BlockingIOError
    fd = _open(above, STAND, root, briefly)
    try:
        names.check(fd, name, refused)
        if syscalls.may_be_mount_point(fd, name):
            raise BlockingIOError
    except OSError:
        os.close(fd)
        raise BlockingIOError from None
    return fd, name


def _open_regular(raw: bytes, root: int | None, briefly: bool) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, which is checked before: opening a device may start it."""
    found = _open(raw, os.O_PATH, root, briefly)
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & SET_ID:
            raise BlockingIOError
        return os.open(b"/proc/self/fd/%d" % found, os.O_RDONLY | CAREFUL), status
    except OSError:
        raise BlockingIOError from None
    finally:
        os.close(found)


def _is_directory(parent: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False
