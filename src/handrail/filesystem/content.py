"""The content of open files: written whole, or copied from one into another."""

from __future__ import annotations

import errno
import os

#: What the fast ways return when they cannot be used for these two files.
NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EPERM}

_STEP = 64 * 1024 * 1024
_PUMP = 256 * 1024


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of it at the position of a file; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of it at another position of a file; raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def copy_content(source: int, destination: int) -> None:
    """Copy all of ``source`` to the beginning of ``destination``, within the kernel if possible."""
    os.lseek(source, 0, os.SEEK_SET)
    os.lseek(destination, 0, os.SEEK_SET)
    # Files of /proc claim to be empty, and copy_file_range believes them.
    movers = (_by_range, _by_sendfile, _by_hand) if os.fstat(source).st_size else (_by_hand,)
    for mover in movers:
        try:
            while mover(source, destination):
                pass
        except OSError as error:
            if mover is _by_hand or error.errno not in NOT_SUPPORTED:
                raise
            continue  # positions are where the last success left them
        return


def _by_range(source: int, destination: int) -> int:
    return os.copy_file_range(source, destination, _STEP)


def _by_sendfile(source: int, destination: int) -> int:
    return os.sendfile(destination, source, None, _STEP)


def _by_hand(source: int, destination: int) -> int:
    data = os.read(source, _PUMP)
    write_all(destination, data)
    return len(data)
