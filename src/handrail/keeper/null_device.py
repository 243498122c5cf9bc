"""The null device as stdin of a command, which can change neither its mode nor its times.

A descriptor belongs to the mount it was opened on.  A command that is sandboxed as root owns the
host's ``/dev/null``, so with a descriptor of it ``fchmod`` closes it to all other users, whatever
is mounted in the sandbox.  So it is opened by a read-only mount of its own: the kernel lets devices
be written there, and nothing about them be changed.  Other users cannot change it anyway.
"""

from __future__ import annotations

import os
import socket

from handrail import passed_fds

_SYS_OPEN_TREE, _SYS_MOUNT_SETATTR = 428, 442
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_HERE, _CLONE_TREE, _EMPTY_PATH = -100, 1 | os.O_CLOEXEC, 0x1000
#: ``struct mount_attr`` with MOUNT_ATTR_RDONLY.
_READ_ONLY = (1).to_bytes(8, "little") + bytes(24)
NULL = b"/dev/null"

#: How it is opened, once that is known.
_path: list[bytes] = []


def prepare() -> None:
    """Do now what the first use would do, so that the fds of this process stay as they are."""
    if not _path:
        _path.append(_sealed())


def opened() -> int:
    """Open it for a command; raises OSError."""
    prepare()
    return os.open(_path[0], os.O_RDONLY | os.O_CLOEXEC)


def _sealed() -> bytes:
    """The path of a mount of it that is read-only, or its own."""
    try:
        if os.stat(NULL).st_uid != os.geteuid():
            return NULL
        return b"/proc/self/fd/%d" % _mounted()
    except OSError:
        return NULL  # where no namespace can be made, there is no bubblewrap either


def _mounted() -> int:
    """An fd of a read-only mount of it, which is nowhere else; raises OSError.

    A child makes it, in namespaces where we may mount.
    """
    told, tell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            socket.send_fds(tell, [b"m"], [_mount()])
        finally:
            os._exit(0)
    tell.close()
    with told:
        said, fds = passed_fds.receive(told, 1, 1)
    os.waitpid(pid, 0)
    if not said or not fds:
        raise OSError(1, "no read-only mount of the null device")
    return fds[0]


def _mount() -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_MOUNTS) < 0:
        raise OSError(ctypes.get_errno(), "unshare")
    fd: int = libc.syscall(_SYS_OPEN_TREE, _HERE, NULL, _CLONE_TREE)
    size = len(_READ_ONLY)
    if fd < 0 or libc.syscall(_SYS_MOUNT_SETATTR, fd, b"", _EMPTY_PATH, _READ_ONLY, size) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    return fd
