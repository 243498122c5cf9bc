"""Watching directories for new, removed and replaced names: one inotify queue.

The kernel queues an event before the call that caused it returns, so what is not in the queue has
not happened.  That holds for file systems of this machine only: what another machine changes in a
shared one is never reported.  A queue that overflows says so.
"""

from __future__ import annotations

import os
import sys

from handrail.filesystem import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: File systems whose changes all pass through this kernel.
LOCAL = frozenset(b"ext2 ext3 ext4 xfs btrfs f2fs tmpfs ramfs overlay".split())
#: The share of the user's watches that all queues of this process may have.
_SHARE = 4
#: While there are so many queues, none is made for a few directories: a user may have 128.
MOST_SMALL = 8
_LIMIT = "/proc/sys/fs/inotify/max_user_watches"
_IN_DONT_FOLLOW = 0x02000000
_MASK = (
    syscalls.IN_CREATE | syscalls.IN_DELETE | syscalls.IN_MOVED_FROM | syscalls.IN_MOVED_TO
    | syscalls.IN_ATTRIB | syscalls.IN_ONLYDIR | _IN_DONT_FOLLOW
)  # fmt: skip
_BROKEN = syscalls.IN_Q_OVERFLOW | syscalls.IN_UNMOUNT
_AT_ONCE = 1 << 18
#: The first read, for what a few changes report: memory for the other is mapped and unmapped.
_FEW_AT_ONCE = 1 << 12
#: The most that one event takes, with its name.
_LONGEST = 16 + 256

_in_use = 0
_queues = 0


def queues() -> int:
    """How many queues this process has."""
    return _queues


class Lost(Exception):
    """What happened since the last look is not known."""


class DirectoryWatch:
    """The watches of one tree; raises OSError where there is no inotify."""

    def __init__(self) -> None:
        global _queues
        self._process = os.getpid()
        self._most = _most()
        self._queue = syscalls.inotify_init()
        _queues += 1
        self._paths: dict[int, bytes] = {}
        #: By path; -1 for a directory that cannot be read, or need not be: its own changes are
        #: reported by the directory above it.
        self._watches: dict[bytes, int] = {}

    def __contains__(self, path: bytes) -> bool:
        return path in self._watches

    def sees(self, path: bytes) -> bool:
        """Whether new names in a directory are reported."""
        return self._watches.get(path, -1) >= 0

    def add(self, path: bytes, *, contents: bool = True) -> None:
        """Watch a directory; raises FileNotFoundError, NotADirectoryError, and Lost.

        Without ``contents`` only its own changes count, which the one above it reports.
        """
        global _in_use  # the limit is the user's
        if not contents:
            self._watches[path] = -1
            return
        if _in_use >= self._most:
            raise Lost
        try:
            watch = syscalls.inotify_add_path(self._queue, path, _MASK)
        except PermissionError:
            self._watches[path] = -1
            return
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError:
            raise Lost from None  # too many watches, no memory
        known = self._paths.get(watch)
        if known is None:
            _in_use += 1
        elif known != path:
            self._watches.pop(known, None)  # the same directory, moved
        self._paths[watch] = path
        self._watches[path] = watch

    def drop(self, path: bytes) -> None:
        """Stop watching a directory."""
        watch = self._watches.pop(path, -1)
        if watch >= 0:
            self._forget(watch)
            syscalls.inotify_remove(self._queue, watch)

    def _forget(self, watch: int) -> None:
        global _in_use  # the limit is the user's
        if self._paths.pop(watch, None) is not None:
            _in_use -= 1

    def changes(self) -> Iterator[tuple[bytes, bytes, bool]]:
        """What has happened: directory, name (empty: the directory itself), whether it is one.

        Raises Lost when that is not known.
        """
        if self._process != os.getpid():
            raise Lost  # a forked process would take the events of the other
        size = _FEW_AT_ONCE
        while True:
            try:
                data = os.read(self._queue, size)
            except BlockingIOError:
                return
            except OSError:
                raise Lost from None
            for watch, mask, name in syscalls.inotify_events(data):
                if mask & _BROKEN:
                    raise Lost
                path = self._paths.get(watch)
                if path is None:
                    continue  # dropped before
                if mask & syscalls.IN_IGNORED:
                    self._forget(watch)
                    self._watches.pop(path, None)
                yield path, name, bool(mask & syscalls.IN_ISDIR)
            if len(data) + _LONGEST <= size:
                return  # another would have been read, too
            size = _AT_ONCE

    def pending(self) -> int:
        """How many bytes of events wait."""
        import fcntl  # not for the first command
        import termios

        try:
            found = fcntl.ioctl(self._queue, termios.FIONREAD, bytes(4))
        except (OSError, ValueError):
            return 0  # closed meanwhile
        return int.from_bytes(found, sys.byteorder)

    def close(self) -> None:
        """End all watches."""
        global _in_use, _queues  # the limits are the user's
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1
            _queues -= 1
            _in_use -= len(self._paths)
            self._paths.clear()
            self._watches.clear()


def _most() -> int:
    try:
        with open(_LIMIT, "rb") as file:
            return int(file.read()) // _SHARE
    except (OSError, ValueError):
        return 0
