"""Keep file calls out of ``/proc`` of this runtime's own processes.

Environment, memory and fds of server and keeper hold secrets and the output of other clients.
Commands cannot read them (the processes are not dumpable, and a sandbox has its own ``/proc``), but
the kernel lets a process read its own, and root every other: a file call would read them for its
client.  So everything below ``/proc/PID`` of a process of ours is refused, names as well as
content, and also what lies behind one of its links (``fd/7``, ``exe``, ``root``).

How it works
------------
A path is opened with RESOLVE_NO_MAGICLINKS.  If that succeeds, the fd's own path tells whether it
lies below one of our processes.  If the kernel refuses because a link of that kind is on the way,
the path is walked by hand and each directory of ``/proc`` on it is checked before the next step.
Where the kernel has no such rule (in a sandbox), a path that is that of the fd it leads to has no
link on the way; any other is walked.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from handrail.filesystem import syscalls
from handrail.filesystem.errors import os_error

_STAND = os.O_PATH | os.O_CLOEXEC
#: The kernel's limit of links in one path (MAXSYMLINKS).
_MOST_LINKS = 40
#: The inode of the root directory of every proc file system.
_PROC_ROOT = 1

#: Each returns the pid of one more process of this runtime; 0 for none at the moment.
_registered: list[Callable[[], int]] = []


def register(pid: Callable[[], int]) -> None:
    """Count the process that ``pid`` returns, called at each check, among our own."""
    _registered.append(pid)


def open_path(raw: bytes, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a path, following links; EACCES if it leads into one of handrail's processes."""
    return checked(open_unchecked(raw, flags, dir_fd=dir_fd))


def open_unchecked(raw: bytes, flags: int, *, dir_fd: int | None) -> int:
    """Open without the check, for a caller that calls ``refuse`` itself."""
    if not syscalls.supports(syscalls.RESOLVE_NO_MAGICLINKS):
        fd = _open_without_links(raw, flags)
        return _open_by_steps(raw, flags, dir_fd) if fd < 0 else fd
    start = syscalls.AT_FDCWD if dir_fd is None else dir_fd
    try:
        fd = syscalls.openat2(start, raw, flags, 0, syscalls.RESOLVE_NO_MAGICLINKS)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return _open_by_steps(raw, flags, dir_fd)
    return fd


def _open_without_links(raw: bytes, flags: int) -> int:
    """Open a path that leads through no link and has no dots; -1: it does, or cannot be opened."""
    if not raw.startswith(b"/"):
        return -1
    try:
        fd = os.open(raw, flags | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        if os.readlink(b"/proc/self/fd/%d" % fd) == raw:
            return fd
    except OSError:
        pass  # no /proc
    os.close(fd)
    return -1


def checked(fd: int) -> int:
    """Return the fd, or close it and raise EACCES if it belongs to one of handrail's processes."""
    try:
        refuse(fd, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def refuse(fd: int, status: os.stat_result) -> None:
    """Raise EACCES if ``fd`` belongs to one of handrail's processes in ``/proc``."""
    # Only file systems without a device of their own have major number 0.
    if os.major(status.st_dev) or not syscalls.is_proc(fd):
        return
    place = os.readlink(f"/proc/self/fd/{fd}")
    if any(part.isdigit() and _is_ours(part) for part in place.split("/")):
        raise os_error(errno.EACCES)


def refuse_directory(raw: bytes) -> None:
    """Raise EACCES if the path is a directory of one of handrail's processes; cheap elsewhere."""
    if syscalls.is_proc_at(raw):
        os.close(open_path(raw, _STAND))


def _is_ours(number: str) -> bool:
    """Whether this is the pid or a tid of one of handrail's processes, or the pid of our child."""
    ours = {str(os.getpid()), *(str(pid()) for pid in _registered)}
    if number in ours or any(os.path.isdir(f"/proc/{pid}/task/{number}") for pid in ours):
        return True
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1]) == os.getpid()
    except (OSError, ValueError, IndexError):
        return False  # gone, or no process: a file of that name elsewhere in /proc


def _open_by_steps(raw: bytes, flags: int, dir_fd: int | None) -> int:
    """Walk the path component by component and check each before the next step."""
    here = os.open(b"/" if raw.startswith(b"/") else b".", _STAND, dir_fd=dir_fd)
    try:
        names = raw.split(b"/")[::-1]
        links = 0
        while names:
            name = names.pop()
            if name in (b"", b"."):
                continue
            magic = _has_magic_links(here)
            below = os.open(name, _STAND if magic else _STAND | os.O_NOFOLLOW, dir_fd=here)
            if stat.S_ISLNK(os.fstat(below).st_mode):
                links += 1
                try:
                    if links > _MOST_LINKS:
                        raise os_error(errno.ELOOP)
                    target = os.readlink(b"", dir_fd=below)
                finally:
                    os.close(below)
                names += target.split(b"/")[::-1]
                if not target.startswith(b"/"):
                    continue
                below = os.open(b"/", _STAND)
            os.close(here)
            here = below
            refuse(here, os.fstat(here))
        if flags & os.O_PATH:
            return os.dup(here)
        return os.open(b"/proc/self/fd/%d" % here, flags & ~os.O_NOFOLLOW)
    finally:
        os.close(here)


def _has_magic_links(directory: int) -> bool:
    """Whether links in a directory are magic links: those of a process that is not ours."""
    status = os.fstat(directory)
    if os.major(status.st_dev) or not syscalls.is_proc(directory):
        return False
    return status.st_ino != _PROC_ROOT
