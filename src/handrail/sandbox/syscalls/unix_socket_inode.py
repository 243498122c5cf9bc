"""Which inode a Unix socket is bound to, according to the kernel, not to its path.

If the socket's network namespace is ours (a sandbox without network), the kernel opens the inode
for us.  In the host's that takes a privilege; there the socket statistics, which need none, give
the inode number.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

_SIOCUNIXFILE = 0x89E0
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST = 4, 20, 1
_SHOW_VFS, _VFS = 2, 1
_HEAD = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBHIIIII")
_ANSWER = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HHII")
_ANY_STATE = _ANY_COOKIE = 0xFFFFFFFF


def is_bound_to(sock: socket.socket, inode: os.stat_result) -> bool:
    """Whether this socket is bound to that inode."""
    try:
        fd = fcntl.ioctl(sock.fileno(), _SIOCUNIXFILE, 0)
    except PermissionError:
        return _by_statistics(os.fstat(sock.fileno()).st_ino, inode)
    except OSError:
        return False  # not bound
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return (found.st_dev, found.st_ino) == (inode.st_dev, inode.st_ino)


def _by_statistics(number: int, inode: os.stat_result) -> bool:
    """Like `is_bound_to`, by the inode number of a socket in our own network namespace.

    The kernel reports 32 bits of the inode; for larger numbers the answer is no.
    """
    if inode.st_ino >> 32:
        return False
    device = os.major(inode.st_dev) << 20 | os.minor(inode.st_dev)
    question = _QUESTION.pack(
        socket.AF_UNIX, 0, 0, _ANY_STATE, number & 0xFFFFFFFF, _SHOW_VFS, _ANY_COOKIE, _ANY_COOKIE
    )
    size = _HEAD.size + len(question)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as statistics:
            statistics.settimeout(1.0)
            head = _HEAD.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0)
            statistics.sendto(head + question, (0, 0))
            answer = statistics.recv(4096)
    except OSError:
        return False
    return (inode.st_ino, device) == _place(answer)


def _place(answer: bytes) -> tuple[int, int] | None:
    """Inode and device in an answer, if it has them."""
    length, kind = struct.unpack_from("=IH", answer)
    at = _HEAD.size + _ANSWER.size
    while kind == _SOCK_DIAG_BY_FAMILY and at + _ATTRIBUTE.size <= min(length, len(answer)):
        size, what, inode, device = _ATTRIBUTE.unpack_from(answer, at)
        if what == _VFS:
            return inode, device
        at += max(4, size + 3 & ~3)
    return None
