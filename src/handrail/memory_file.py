"""A file in memory that has no name, to be passed on as an fd.

``memfd_create`` makes one.  Filters of containers may refuse that call; then it is a file that
never gets a name (O_TMPFILE, O_EXCL) in a directory in memory, or in a temporary one.  Both can be
written at any position and are gone with their last fd.
"""

from __future__ import annotations

import os

#: Errors that say nothing about the call itself: ENFILE, EMFILE, ENOMEM.
_SCARCE = (23, 24, 12)
_DIRECTORIES = ("/dev/shm", "/run/shm", "/tmp", "/var/tmp")  # noqa: S108 (it gets no name there)
#: Input of a process has its records beyond this position (``process/stdin/log.py``).
LARGEST = (1 << 44) + (1 << 20)


def create(name: str, *, inheritable: bool = False) -> int:
    """Make a new file; ``name`` is visible only in /proc.  Raises OSError."""
    try:
        return os.memfd_create(name, 0 if inheritable else os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        refusal = error
    flags = os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
    for directory in (*_DIRECTORIES, os.environ.get("TMPDIR", "/")):
        try:
            fd = os.open(directory, flags, 0o600)
        except OSError:
            continue
        try:
            os.ftruncate(fd, LARGEST)  # a file system that holds no such file is of no use
            os.ftruncate(fd, 0)
            os.set_inheritable(fd, inheritable)
        except OSError:
            os.close(fd)
            continue
        return fd
    raise refusal


def of(name: str, text: bytes, *, inheritable: bool = False) -> int:
    """Make a new file with this content, to be read from its beginning; raises OSError."""
    fd = create(name, inheritable=inheritable)
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
