"""Device files as streams of a command, of which it can change neither mode nor times.  Linux only.

A descriptor belongs to the mount it was opened on.  A command that is sandboxed as root owns the
host's ``/dev/null``, so with a descriptor of it ``fchmod`` closes it to all other users, whatever
is mounted in the sandbox.  So it is opened by a read-only mount of its own: the kernel lets devices
be written there, and nothing about them be changed.  Other users cannot change one anyway.
"""

from __future__ import annotations

import _socket  # the C part: this is a part of short commands, too
import fcntl
import os

_SYS_OPEN_TREE, _SYS_MOUNT_SETATTR = 428, 442
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_HERE, _CLONE_TREE, _EMPTY_PATH = -100, 1 | os.O_CLOEXEC, 0x1000
#: ``struct mount_attr`` with MOUNT_ATTR_RDONLY.
_READ_ONLY = (1).to_bytes(8, "little") + bytes(24)
#: null, zero, full, random, urandom: whatever is written to them changes nothing.
HARMLESS = {
    os.makedev(1, minor): b"/dev/" + name
    for minor, name in ((3, b"null"), (5, b"zero"), (7, b"full"), (8, b"random"), (9, b"urandom"))
}
NULL = b"/dev/null"

#: By path: how it is opened.
_sealed: dict[bytes, bytes] = {}


def prepare(device: bytes = NULL) -> None:
    """Do now what the first use would do, so that the fds of this process stay as they are."""
    if device not in _sealed:
        _sealed[device] = _seal(device)


def opened(device: bytes = NULL, flags: int = os.O_RDONLY) -> int:
    """Open a device for a command; raises OSError."""
    prepare(device)
    return os.open(_sealed[device], flags | os.O_CLOEXEC)


def opened_again(number: int) -> int | None:
    """Open for a command what a stream of this process is; None: it may have the stream."""
    try:
        status = os.fstat(number)
        device = HARMLESS.get(status.st_rdev, b"")
        if not device or status.st_uid != os.geteuid():
            return None
        if not os.path.samestat(os.stat(device), status):
            return None
        return opened(device, fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE)
    except OSError:
        return None


def _seal(device: bytes) -> bytes:
    """The path of a mount of it that is read-only, or its own."""
    try:
        if os.stat(device).st_uid != os.geteuid():
            return device
        return b"/proc/self/fd/%d" % _mounted(device)
    except OSError:
        return device  # where no namespace can be made, there is no bubblewrap either


def _mounted(device: bytes) -> int:
    """An fd of a read-only mount of a file, which is nowhere else; raises OSError.

    A child makes it, in namespaces where we may mount.
    """
    told, tell = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            fd = _mount(device)
            rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, "little"))
            tell.sendmsg([b"m"], [rights])
        finally:
            os._exit(0)
    tell.close()
    said, others, *_ = told.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC)
    told.close()
    os.waitpid(pid, 0)
    if not said or not others:
        raise OSError(1, "no read-only mount of a device")
    return int.from_bytes(others[0][2][:4], "little")


def _mount(device: bytes) -> int:
    import ctypes  # in the child alone: it takes a while

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_MOUNTS) < 0:
        raise OSError(ctypes.get_errno(), "unshare")
    fd: int = libc.syscall(_SYS_OPEN_TREE, _HERE, device, _CLONE_TREE)
    size = len(_READ_ONLY)
    if fd < 0 or libc.syscall(_SYS_MOUNT_SETATTR, fd, b"", _EMPTY_PATH, _READ_ONLY, size) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    return fd
