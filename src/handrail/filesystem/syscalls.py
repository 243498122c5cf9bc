"""Syscalls that the standard library lacks: openat2, linkat, renameat2, statx, fallocate, inotify.

Thin: numbers and structures of linux/openat2.h, linux/stat.h and sys/inotify.h, and no decisions.
ctypes releases the GIL during each call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache

AT_FDCWD = -100

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10
RESOLVE_CACHED = 0x20

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_EXCL_UNLINK = 0x04000000
IN_MASK_ADD = 0x20000000
IN_ISDIR = 0x40000000

_SYS_OPENAT2 = 437  # the same number on every architecture, like all calls since 5.1
_AT_EMPTY_PATH = 0x1000
_RENAME_NOREPLACE = 1
_AT_STATX_DONT_SYNC = 0x4000
_STATX_BTIME = 0x800
_STATX_SIZE = 256
_STATX_BTIME_AT = 80
_STATX_BASIC = 0x7FF
_STATX_MTIME_AT = 112
_STATX_DEV_MAJOR_AT = 136
_STATX_ATTRIBUTES_AT = 8
_STATX_ATTRIBUTES_MASK_AT = 56
_STATX_ATTR_MOUNT_ROOT = 0x2000
_AT_SYMLINK_NOFOLLOW = 0x100
_FALLOC_FL_KEEP_SIZE = 1
_STATFS_SIZE = 256  # more than struct statfs takes anywhere
_PROC_SUPER_MAGIC = 0x9FA0
_TMPFS_MAGIC = 0x01021994

_libc = ctypes.CDLL(None, use_errno=True)
#: struct open_how: flags, mode, resolve.
_OPEN_HOW = struct.Struct("=QQQ")
#: Declared once: converting arguments by declared types costs half of guessing them.
_openat2 = ctypes.CDLL(None, use_errno=True).syscall
_openat2.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
)
_openat2.restype = ctypes.c_long

_statx = getattr(_libc, "statx", None)
if _statx is not None:
    _statx.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_char_p,
    )

_renameat2 = getattr(_libc, "renameat2", None)
if _renameat2 is not None:
    _renameat2.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    )

_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)

_linkat = _libc.linkat
_linkat.argtypes = (
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
)


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def openat2(dir_fd: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
    """Open ``path`` under the ``resolve`` rules; returns a close-on-exec fd."""
    # The kernel refuses a mode without a flag that creates, where open(2) ignores it.
    # O_TMPFILE contains the bit of O_DIRECTORY, hence the comparison.
    creates = flags & os.O_CREAT or flags & os.O_TMPFILE == os.O_TMPFILE
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, mode if creates else 0, resolve)
    while True:
        fd: int = _openat2(_SYS_OPENAT2, dir_fd, path, how, _OPEN_HOW.size)
        if fd >= 0:
            return fd
        if ctypes.get_errno() != errno.EINTR:
            raise _failed()


def link_fd(fd: int, name: bytes, dir_fd: int) -> None:
    """Give an open file a name.

    By the fd itself, which kernels before 6.10 allow to CAP_DAC_READ_SEARCH alone and else answer
    with ENOENT; then by its link in /proc, which takes longer to walk than the rest.
    """
    if not _linkat(fd, b"", dir_fd, name, _AT_EMPTY_PATH):
        return
    if ctypes.get_errno() != errno.ENOENT:
        raise _failed()
    os.link(b"/proc/self/fd/%d" % fd, name, dst_dir_fd=dir_fd)


def rename_new(name: bytes, new: bytes, dir_fd: int) -> None:
    """Rename within a directory, never over what is there: EEXIST.

    EINVAL from file systems that cannot tell, ENOSYS from a C library that lacks the call.
    """
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _renameat2(dir_fd, name, dir_fd, new, _RENAME_NOREPLACE):
        raise _failed()


@cache
def supports(resolve: int) -> bool:
    """Whether openat2 exists, is allowed, and knows these rules; tried once.

    Missing before 5.6 (5.12 for RESOLVE_CACHED); some container filters answer EPERM.
    """
    try:
        os.close(openat2(AT_FDCWD, b"/", os.O_PATH, 0, resolve))
    except BlockingIOError:
        return True  # RESOLVE_CACHED is known, only the cache was cold
    except OSError:
        return False
    return True


def statx(fd: int, *, cached: bool = False) -> tuple[int, int, int, int, int] | None:
    """Mode, size, birth and change in milliseconds, and device major; None: the call is missing.

    ``cached``: from memory alone.  A birth that is not known is 0.
    """
    if _statx is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC if cached else _AT_EMPTY_PATH
    if _statx(fd, b"", flags, _STATX_BASIC | _STATX_BTIME, buffer) != 0:
        return None
    mask, mode, size = struct.unpack_from("=I24xH10xQ", buffer, 0)
    born_s, born_ns = struct.unpack_from("=qI", buffer, _STATX_BTIME_AT)
    changed_s, changed_ns = struct.unpack_from("=qI", buffer, _STATX_MTIME_AT)
    (major,) = struct.unpack_from("=I", buffer, _STATX_DEV_MAJOR_AT)
    born = born_s * 1000 + born_ns // 1_000_000 if mask & _STATX_BTIME else 0
    return mode, size, max(0, born), max(0, changed_s * 1000 + changed_ns // 1_000_000), major


def may_be_mount_point(dir_fd: int, name: bytes) -> bool:
    """Whether a mount covers this name in the mounts of ``dir_fd``; True if that cannot be told.

    A name that is missing is none.  The kernel tells since 5.8.
    """
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    if _statx is None:
        return True
    if _statx(dir_fd, name, _AT_SYMLINK_NOFOLLOW | _AT_STATX_DONT_SYNC, 0, buffer) != 0:
        return ctypes.get_errno() != errno.ENOENT
    (attributes,) = struct.unpack_from("=Q", buffer, _STATX_ATTRIBUTES_AT)
    (told,) = struct.unpack_from("=Q", buffer, _STATX_ATTRIBUTES_MASK_AT)
    return bool(attributes & _STATX_ATTR_MOUNT_ROOT or not told & _STATX_ATTR_MOUNT_ROOT)


def reserve(fd: int, length: int) -> None:
    """Allocate blocks for the first ``length`` bytes, size and content unchanged."""
    if length and (
        _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(length))
    ):
        raise _failed()


def is_proc(fd: int) -> bool:
    """Whether an fd lies in a proc file system, wherever that is mounted."""
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    return _libc.fstatfs(fd, buffer) == 0 and _type_of(buffer) == _PROC_SUPER_MAGIC


def is_tmpfs(fd: int) -> bool:
    """Whether an fd lies in a file system that is in memory alone."""
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    return _libc.fstatfs(fd, buffer) == 0 and _type_of(buffer) == _TMPFS_MAGIC


def is_proc_at(path: bytes) -> bool:
    """Like `is_proc`, for what a path leads to; False if it leads nowhere."""
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    return _libc.statfs(path, buffer) == 0 and _type_of(buffer) == _PROC_SUPER_MAGIC


def _type_of(buffer: ctypes.Array[ctypes.c_char]) -> int:
    (kind,) = struct.unpack_from("=l" if struct.calcsize("l") == 4 else "=q", buffer, 0)
    return int(kind)


def inotify_init() -> int:
    """A non-blocking, close-on-exec queue of events."""
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _failed()
    return fd


def inotify_add(queue: int, fd: int, mask: int) -> int:
    """Watch the inode behind ``fd``, whatever its name means by now."""
    wd: int = _libc.inotify_add_watch(queue, b"/proc/self/fd/%d" % fd, mask)
    if wd < 0:
        raise _failed()
    return wd


def inotify_add_path(queue: int, path: bytes, mask: int) -> int:
    """Watch what is at ``path``."""
    wd: int = _libc.inotify_add_watch(queue, path, mask)
    if wd < 0:
        raise _failed()
    return wd


def inotify_remove(queue: int, wd: int) -> None:
    """Stop watching; one that is gone already is fine."""
    _libc.inotify_rm_watch(queue, wd)


def inotify_events(data: bytes) -> list[tuple[int, int, bytes]]:
    """Parse what was read from the queue: (watch, mask, name) each."""
    events = []
    at = 0
    while at < len(data):
        wd, mask, _cookie, length = struct.unpack_from("=iIII", data, at)
        at += 16
        events.append((wd, mask, data[at : at + length].rstrip(b"\0")))
        at += length
    return events
