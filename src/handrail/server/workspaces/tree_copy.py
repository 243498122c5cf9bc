"""Copy a template into a workspace: by reflinks where the file system has them, else by content.

Never by hard links: what a command writes to a file would reach the template.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable

#: The ioctl by which a file gets the content of another without a copy.
_FICLONE = 0x40049409
#: What it says where it cannot.
_NO_REFLINK = frozenset(
    (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
)
_BLOCK = 16 * 1024 * 1024


class Stopped(Exception):
    """The server stops; the copy is incomplete."""


class TreeCopy:
    """Copies trees that no other process changes."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._reflinks = True

    def copy(self, source: str, target: str) -> None:
        """Fill an empty directory with the content of another; raises OSError and Stopped."""
        waiting = [(source, target)]
        directories = []
        while waiting:
            source, target = waiting.pop()
            directories.append((source, target))
            with os.scandir(source) as entries:
                for entry in entries:
                    if self._stopped():
                        raise Stopped
                    to = os.path.join(target, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        os.mkdir(to, 0o700)
                        waiting.append((entry.path, to))
                    elif entry.is_symlink():
                        os.symlink(os.readlink(entry.path), to)
                        _same_times(entry.stat(follow_symlinks=False), to)
                    else:
                        self._file(entry.path, to)
        for source, target in reversed(directories):
            status = os.stat(source)
            os.chmod(target, stat.S_IMODE(status.st_mode))
            _same_times(status, target)

    def _file(self, source: str, target: str) -> None:
        given = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            made = os.open(target, flags, 0o600)
            try:
                status = os.fstat(given)
                if status.st_size and not (self._reflinks and self._cloned(given, made)):
                    _copy_bytes(given, made)
                os.fchmod(made, stat.S_IMODE(status.st_mode))
                os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
            finally:
                os.close(made)
        finally:
            os.close(given)

    def _cloned(self, given: int, made: int) -> bool:
        try:
            fcntl.ioctl(made, _FICLONE, given)
        except OSError as error:
            if error.errno not in _NO_REFLINK:
                raise
            self._reflinks = False
            return False
        return True


def _copy_bytes(given: int, made: int) -> None:
    while os.sendfile(made, given, None, _BLOCK):
        pass


def _same_times(status: os.stat_result, path: str) -> None:
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
