"""Notice when a path that is missing now appears: inotify, one shot, no polling.

``MissingWatch`` is the mechanism: for each missing path the nearest directory that exists is
watched for the next name of the path, and every directory on the way for being moved or removed,
since then the path means something else.  After arming, all paths are checked again, so that
nothing is missed between the first check and the watch.

``WatchSlot`` holds the rules of fs/watchMissing for one connection (exec-server 0.166.0): ids only
go up, one watch at a time, a newer one replaces the older silently (also when it finds nothing to
watch), at most 64 paths, and none of them behind a link.

A notification means «check again», not «it exists»: a parent that appeared, vanished or changed its
mode counts too.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence

from handrail.filesystem import syscalls
from handrail.filesystem.errors import NativePath, native, os_error
from handrail.filesystem.no_follow import STAND

#: More than this many paths are not watched (found by bisection on 0.166.0).
MAX_PATHS = 64

#: Where the path stops existing: that directory's identity and the name missing in it.
_Edge = tuple[tuple[int, int], bytes]

_ON_THE_WAY = syscalls.IN_MOVE_SELF | syscalls.IN_DELETE_SELF
_AT_THE_EDGE = _ON_THE_WAY | syscalls.IN_CREATE | syscalls.IN_MOVED_TO | syscalls.IN_ATTRIB
_ALWAYS = _ON_THE_WAY | syscalls.IN_UNMOUNT | syscalls.IN_IGNORED | syscalls.IN_Q_OVERFLOW
_EVENTS_AT_ONCE = 64 * 1024


class MissingWatch:
    """An armed watch.  ``start`` on the loop's thread, ``close`` there too; both may repeat."""

    def __init__(self, queue: int, names: dict[int, set[bytes]]) -> None:
        self._queue = queue
        self._names = names
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: Callable[[], None] | None = None

    @classmethod
    def arm(cls, paths: Sequence[NativePath]) -> MissingWatch | None:
        """Watch for ``paths``; None when there is nothing to wait for, or no way to.

        That is: no path, too many, one that exists already, one that cannot be watched (a link or a
        file on the way, no permission, no inotify left).  Blocks.
        """
        if not 0 < len(paths) <= MAX_PATHS:
            return None
        try:
            queue = syscalls.inotify_init()
        except OSError:
            return None
        try:
            arming = _Arming(queue)
            wanted = [native(path) for path in paths]
            edges = [_edge(path, arming) for path in wanted]
            if [_edge(path) for path in wanted] == edges:
                return cls(queue, arming.names)
        except OSError:
            pass  # one of them exists, or a link or a file is on the way
        os.close(queue)
        return None

    def fileno(self) -> int:
        """The fd that becomes readable; -1 when closed."""
        return self._queue

    def start(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """Call ``changed`` once, on the loop, when something happens; then close."""
        if self._queue >= 0 and self._loop is None:
            self._loop, self._changed = loop, changed
            loop.add_reader(self._queue, self._readable)

    def fired(self) -> bool:
        """Read the events and return whether any of them matters.  Never blocks."""
        while True:
            try:
                data = os.read(self._queue, _EVENTS_AT_ONCE)
            except BlockingIOError:
                return False
            if any(self._matters(*event) for event in syscalls.inotify_events(data)):
                return True

    def close(self) -> None:
        """Stop watching; ``changed`` is not called any more."""
        queue, self._queue = self._queue, -1
        self._changed = None
        if queue < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(queue)
        os.close(queue)

    def _matters(self, wd: int, mask: int, name: bytes) -> bool:
        if mask & _ALWAYS:
            return True
        if not name:
            return bool(mask & syscalls.IN_ATTRIB)  # the directory's own mode or owner
        return bool(mask & (syscalls.IN_CREATE | syscalls.IN_MOVED_TO)) and name in self._names.get(
            wd, ()
        )

    def _readable(self) -> None:
        if self.fired():
            changed = self._changed
            self.close()
            if changed is not None:
                changed()


class WatchSlot:
    """The one watch of a connection.  All calls on the loop's thread, none blocks.

    For a request: ``claim`` the id; if granted, ``MissingWatch.arm`` in the pool; ``hold`` the
    outcome and answer with what that returns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, notify: Callable[[int], None]) -> None:
        self._loop = loop
        self._notify = notify
        self._latest = -1
        self._watch: MissingWatch | None = None
        self._closed = False

    def claim(self, watch_id: int) -> bool:
        """Take the slot, ending the older watch; False unless the id is above all before it."""
        if self._closed or watch_id <= self._latest:
            return False
        self._latest = watch_id
        self._end()
        return True

    def hold(self, watch_id: int, watch: MissingWatch | None) -> bool:
        """Start the watch armed for ``watch_id``; False when there is none or it came late."""
        if watch is None:
            return False
        if self._closed or watch_id != self._latest:
            watch.close()
            return False
        self._watch = watch
        watch.start(self._loop, lambda: self._notify(watch_id))
        return True

    def close(self) -> None:
        """End the watch: the connection is gone."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


class _Arming:
    """Puts the watches for several paths on one queue."""

    def __init__(self, queue: int) -> None:
        self._queue = queue
        #: Per watched directory the names that matter in it.
        self.names: dict[int, set[bytes]] = {}

    def pass_by(self, directory: int) -> None:
        try:
            syscalls.inotify_add(self._queue, directory, _ON_THE_WAY | syscalls.IN_MASK_ADD)
        except OSError:
            pass  # not readable for us; then moving it goes unnoticed

    def stop_at(self, directory: int, name: bytes) -> None:
        wd = syscalls.inotify_add(self._queue, directory, _AT_THE_EDGE | syscalls.IN_MASK_ADD)
        self.names.setdefault(wd, set()).add(name)


def _edge(raw: bytes, arming: _Arming | None = None) -> _Edge:
    """Find, and watch if asked to, where ``raw`` stops existing.

    Raises OSError when it does exist, or when a link or a file is on the way.
    """
    here = os.open(b"/" if raw.startswith(b"/") else b".", STAND)
    try:
        for name in raw.split(b"/"):
            if name in (b"", b"."):
                continue
            try:
                below = os.open(name, STAND | os.O_NOFOLLOW, dir_fd=here)
            except FileNotFoundError:
                if arming is not None:
                    arming.stop_at(here, name)
                status = os.fstat(here)
                return (status.st_dev, status.st_ino), name
            if arming is not None:
                arming.pass_by(here)
            os.close(here)
            here = below
    finally:
        os.close(here)
    raise os_error(errno.EEXIST)
