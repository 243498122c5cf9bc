"""Directories below a root, opened without crossing a link, a few of them kept open."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from typing import Self

from handrail.filesystem import names, own_processes
from handrail.filesystem.errors import os_error
from handrail.filesystem.no_follow import STAND, open_no_follow

_MOST = 32


class DirectoryFds:
    """The open directories of one call.  Everything raises plain OSError."""

    def __init__(self, root: bytes) -> None:
        #: The root itself may be reached through links: the caller has named it.
        self._root = own_processes.open_path(root, STAND)
        self._open: OrderedDict[bytes, int] = OrderedDict()
        self._devices: dict[bytes, int] = {}
        #: For a directory's fd and a mode: whether a new file there gets that mode.
        self._modes: dict[tuple[int, int], bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
        os.close(self._root)

    def get(self, directory: bytes, *, make: bool = False) -> int:
        """The fd of a directory; ``make``: it and what is missing above it are made."""
        if not directory:
            return self._root
        fd = self._open.get(directory)
        if fd is not None:
            self._open.move_to_end(directory)
            return fd
        try:
            fd = open_no_follow(directory, STAND, dir_fd=self._root)
        except FileNotFoundError:
            if not make:
                raise
            fd = self._make(directory)
        if len(self._open) >= _MOST:
            os.close(self._open.popitem(last=False)[1])
            self._modes.clear()  # an fd may come back as another directory's
        self._open[directory] = fd
        return fd

    def device(self, directory: bytes) -> int:
        """The file system that a directory lies on."""
        device = self._devices.get(directory)
        if device is None:
            device = self._devices[directory] = os.fstat(self.get(directory)).st_dev
        return device

    def gives_mode(self, directory: int, mode: int, fd: int) -> bool:
        """Whether a file that was made with a mode has it; the umask or an ACL may keep bits back.

        Looked up once for each directory and mode: the answer is the same for every file there.
        """
        known = self._modes.get((directory, mode))
        if known is None:
            known = self._modes[directory, mode] = os.fstat(fd).st_mode & 0o7777 == mode
        return known

    def _make(self, directory: bytes) -> int:
        above, _, name = directory.rpartition(b"/")
        parent = self.get(above, make=True)
        try:
            names.mkdir(name, dir_fd=parent)
        except FileExistsError:
            pass  # another call made it just now; the next line shows what it is
        try:
            return os.open(name, STAND | os.O_NOFOLLOW, dir_fd=parent)
        except NotADirectoryError:
            raise os_error(errno.ENOTDIR) from None
