"""Make many mounts, then exec bwrap: ``python -I -S -B premount_program.py FD END PROGRAM ARG...``.

FD holds the request of ``premount.py``.  END is ``with-parent`` for one that ends with its parent.
Nothing is mounted by name: a place is opened without following any link, has to be the very inode
that the plan was made for, and is mounted onto by its descriptor.  A place that has become another
ends everything before bwrap has begun, and the plan is made anew; so does one that is gone, unless
the request says otherwise.  Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from typing import NoReturn

#: As in ``premount.py``, which this program does not load.
_PIN, _EMPTY_DIRECTORY, _EMPTY_FILE = b"p", b"d", b"f"
_IF_THERE = b"?"

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_UMOUNT2 = {"x86_64": 166, "aarch64": 39}
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_OPENAT2, _MOUNT_SETATTR = 437, 442  # the same on every architecture
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_FROM_EMPTY, _TO_EMPTY = 0x4, 0x40
_CMD_CREATE = 6
_READ_ONLY, _NO_SUID, _NO_DEV = 1, 2, 4
_PRIVATE = 1 << 18
_DETACH = 2
_NO_SYMLINKS = 0x4
#: Where a file system is attached temporarily, so that parts of it can be mounted elsewhere.
_ATTACH_POINT = b"/proc"
_ENV = {b"PATH": b"/usr/bin:/bin"}


class _How(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("flags", "mode", "resolve"))


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "fd"))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: object) -> int:
    got: int = _libc.syscall(
        ctypes.c_long(number),
        *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments),
    )
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


def _enter_namespace() -> None:
    """Enter a private mount namespace."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 or _libc.unshare(_CLONE_NEWNS) < 0:
        if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        maps = ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")
        for name, text in maps:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _set(_AT_FDCWD, b"/", _AT_RECURSIVE, _Attributes(propagation=_PRIVATE))
    if uid == 0:  # the owner of the devices: see private_mounts_stub
        try:
            _set(_AT_FDCWD, b"/dev", 0, _Attributes(set=_READ_ONLY))
        except OSError:
            pass  # it is no mount, or another user namespace keeps it as it is


def _set(fd: int, path: bytes, flags: int, attributes: _Attributes) -> None:
    size = ctypes.sizeof(attributes)
    _call(_MOUNT_SETATTR, fd, path, flags, ctypes.byref(attributes), size)


def _open(path: bytes, device: int, inode: int) -> int:
    how = _How(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _NO_SYMLINKS)
    size = ctypes.sizeof(how)
    fd = _call(_OPENAT2, _AT_FDCWD, ctypes.c_char_p(path), ctypes.byref(how), size)
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (device, inode):
        raise OSError(0, "it was exchanged")
    return fd


def _mount(source: int, place: int, attributes: int) -> None:
    """Mount a recursive copy of what one fd refers to onto another."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
    tree = _call(_OPEN_TREE, source, b"", flags)
    more = _Attributes(set=attributes | _NO_SUID | _NO_DEV)
    _set(tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, more)
    _call(_MOVE_MOUNT, tree, b"", place, b"", _FROM_EMPTY | _TO_EMPTY)
    os.close(tree)


def _make_empty() -> tuple[int, int]:
    """Make an empty directory and an empty file without any permissions."""
    context = _call(_FSOPEN, b"tmpfs", 1)
    _call(_FSCONFIG, context, _CMD_CREATE, None, None, 0)
    made = _call(_FSMOUNT, context, 1, 0)
    bench = os.open(_ATTACH_POINT, os.O_PATH | os.O_CLOEXEC)
    _call(_MOVE_MOUNT, made, b"", bench, b"", _FROM_EMPTY | _TO_EMPTY)
    os.mkdir("directory", 0o000, dir_fd=made)
    os.close(os.open("file", os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o000, dir_fd=made))
    flags = os.O_PATH | os.O_CLOEXEC
    return os.open("directory", flags, dir_fd=made), os.open("file", flags, dir_fd=made)


def make(text: bytes, *, lasting: bool) -> None:
    """Make all mounts of a request; raises OSError with the path in ``filename``."""
    _enter_namespace()
    if not lasting:
        # Set here, since gaining privileges clears it.  bwrap sets it too, but later.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing: dict[bytes, int] = {}
    for record in text.split(b"\0")[:-1]:
        how, device, inode, path = record.split(b" ", 3)
        what = how.removesuffix(_IF_THERE)
        try:
            place = _open(path, int(device), int(inode))
            if what in (_EMPTY_DIRECTORY, _EMPTY_FILE) and not nothing:
                nothing[_EMPTY_DIRECTORY], nothing[_EMPTY_FILE] = _make_empty()
            _mount(nothing.get(what, place), place, 0 if what == _PIN else _READ_ONLY)
            os.close(place)
        except OSError as error:
            if what == how or error.errno != errno.ENOENT:
                raise OSError(error.errno, error.strerror, path) from None
    if nothing:
        _call(_UMOUNT2[os.uname().machine], _ATTACH_POINT, _DETACH)


def main(arguments: list[str]) -> NoReturn:
    """Make the mounts and exec the program."""
    number = int(arguments[0])
    try:
        make(os.pread(number, os.fstat(number).st_size, 0), lasting=arguments[1] != "with-parent")
        os.close(number)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by the interpreter
            signal.signal(ignored, signal.SIG_DFL)
        os.execve(arguments[2], arguments[2:], _ENV)
    except OSError as error:
        where = os.fsdecode(error.filename or b"the mount namespace")
        sys.stderr.write(f"{where} cannot be protected: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
