"""What changes below a directory, or with one file, as events: inotify, no polling.

``TreeWatch`` watches every directory of a tree, and new ones as they appear; what is in a new one
by then is told as well.  Links are not followed.  The names that are there are known, so that a
file which another is renamed over is told as changed, and what is written by way of a stage looks
like one write.  Where the kernel drops events, the watch is laid anew and a gap is told.

A sandbox covers a missing ``.git``, ``.agents`` or ``.codex`` by an empty directory of that name,
which comes and goes with each command.  So such a directory is told when something is in it.

For a file its directory is watched, since editors replace files.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
from typing import NamedTuple

from handrail.filesystem import own_processes, syscalls
from handrail.filesystem.errors import NativePath, native, os_errors, refusal
from handrail.filesystem.no_follow import open_no_follow

CREATED, CHANGED, REMOVED = "created", "changed", "removed"

_CREATES = syscalls.IN_CREATE | syscalls.IN_MOVED_TO
_REMOVES = syscalls.IN_DELETE | syscalls.IN_MOVED_FROM
_CHANGES = syscalls.IN_MODIFY | syscalls.IN_ATTRIB
_GONE = syscalls.IN_DELETE_SELF | syscalls.IN_MOVE_SELF | syscalls.IN_UNMOUNT
_MASK = _CREATES | _REMOVES | _CHANGES | _GONE | syscalls.IN_ONLYDIR | syscalls.IN_EXCL_UNLINK
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_EVENTS_AT_ONCE = 256 * 1024
#: Events of one answer; more of them stay in the kernel's queue.
#: The names that sandboxes cover (``handrail.sandbox.profile.PROTECTED_NAMES``).
COVERED = frozenset((b".git", b".agents", b".codex"))
_STAGE = re.compile(rb"\.handrail-[0-9a-f]{8}(?:[0-9a-f]{8})?")


class FileEvent(NamedTuple):
    """One change; the path is relative to what is watched, empty for that itself."""

    kind: str
    path: bytes


class Happened(NamedTuple):
    """Events in order.  ``gap``: some before them are lost.  ``ended``: there is nothing left."""

    events: list[FileEvent]
    gap: bool = False
    ended: bool = False


class TreeWatch:
    """One watch.  Not for several threads at a time; raises FilesError."""

    def __init__(self, path: NativePath, *, recursive: bool = True) -> None:
        raw = native(path)
        self._recursive = recursive
        self._queue = -1
        #: Name of the one file that matters; None: a directory is watched.
        self._only: bytes | None = None
        with os_errors(raw):
            fd = own_processes.open_path(raw, os.O_PATH | os.O_CLOEXEC)
            is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
            os.close(fd)
            self._top = raw
            if not is_directory:
                self._top, self._only = os.path.split(os.path.realpath(raw))
            try:
                self._lay()
            except OSError as error:
                self.close()
                if error.errno == errno.ENOSPC:
                    text = (
                        "more directories than this user may watch; exclude some by watching"
                        " another path, or raise fs.inotify.max_user_watches"
                    )
                    raise refusal(text, raw, kind="too_large") from None
                raise

    def fileno(self) -> int:
        """The fd that becomes readable."""
        return self._queue

    def close(self) -> None:
        """Stop; harmless when repeated."""
        queue, self._queue = self._queue, -1
        if queue >= 0:
            os.close(queue)

    def wait(self, seconds: float) -> Happened:
        """What has happened since the last call, or happens within this time."""
        poll = select.poll()
        poll.register(self._queue, select.POLLIN)
        poll.poll(seconds * 1000)
        return self.read()

    def read(self) -> Happened:
        """What has happened since the last call; never waits."""
        if self._queue < 0:
            return Happened([], ended=True)
        try:
            data = os.read(self._queue, _EVENTS_AT_ONCE)
        except BlockingIOError:
            return Happened([])
        self._events: list[FileEvent] = []
        for wd, mask, name in syscalls.inotify_events(data):
            if mask & syscalls.IN_Q_OVERFLOW:
                return self._again()
            place = self._places.get(wd)
            if place is None:
                continue
            if mask & syscalls.IN_IGNORED:
                del self._places[wd]
                self._known.pop(place, None)
            elif mask & _GONE:
                if not place:
                    self._tell(REMOVED, b"")
                    self.close()
                    return Happened(self._events, ended=True)
            elif name:
                self._named(place, name, mask)
        return Happened(self._events)

    # --- events ------------------------------------------------------------------------------

    def _named(self, place: bytes, name: bytes, mask: int) -> None:
        if _STAGE.fullmatch(name) or (self._only is not None and name != self._only):
            return
        if place in self._empty and not self._filled(place):
            return
        path = place + b"/" + name if place else name
        known = self._known.setdefault(place, set())
        if mask & _CREATES and mask & syscalls.IN_ISDIR and self._is_cover(path, name):
            return
        if mask & _REMOVES and path in self._empty:
            self._empty.discard(path)
            self._leave(path)
        elif mask & _CREATES:
            self._tell(CHANGED if name in known else CREATED, path)
            known.add(name)
            if mask & syscalls.IN_ISDIR and self._recursive and self._only is None:
                self._enter(path, tell=True)
        elif mask & _REMOVES:
            known.discard(name)
            self._tell(REMOVED, path)
            if mask & syscalls.IN_ISDIR:
                self._leave(path)
        elif name in known:  # others are files without a name, which the kernel shows as #INODE
            self._tell(CHANGED, path)

    def _is_cover(self, path: bytes, name: bytes) -> bool:
        """Whether a directory may be a sandbox's: then it is watched until something is in it."""
        if name not in COVERED or self._only is not None:
            return False
        try:
            self._watch(path, tell=False)
        except FileNotFoundError:
            pass  # it is gone again
        except OSError:
            return False
        if self._known.get(path):
            self._leave(path)
            return False
        self._empty.add(path)
        return True

    def _filled(self, path: bytes) -> bool:
        """Tell of a directory that is not empty any more; whether what is in it matters, too."""
        self._empty.discard(path)
        self._known.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
        self._tell(CREATED, path)
        if not self._recursive:
            self._leave(path)
        return self._recursive

    def _tell(self, kind: str, path: bytes) -> None:
        event = FileEvent(kind, b"" if self._only is not None else path)
        # One write is several events, of which the first tells everything.
        last = self._events[-1] if self._events else None
        if last is None or kind != CHANGED or last.kind == REMOVED or last.path != event.path:
            self._events.append(event)

    def _again(self) -> Happened:
        """Watch everything anew, after the kernel has dropped events."""
        self.close()
        try:
            self._lay()
        except OSError:
            return Happened([], gap=True, ended=True)
        return Happened([], gap=True)

    # --- watches -------------------------------------------------------------------------------

    def _lay(self) -> None:
        self._queue = syscalls.inotify_init()
        #: The directories by watch, and the names in each; relative paths.
        self._places: dict[int, bytes] = {}
        self._known: dict[bytes, set[bytes]] = {}
        #: Directories that may be covers of a sandbox, and are not told yet.
        self._empty: set[bytes] = set()
        self._events = []
        self._enter(b"", first=True)

    def _enter(self, path: bytes, *, tell: bool = False, first: bool = False) -> None:
        """Watch a directory and, if asked to, those below it; ``tell`` what is in there."""
        pending = [path]
        while pending:
            path = pending.pop()
            try:
                pending += self._watch(path, tell)
            except OSError as error:
                # It is gone again, or not ours to read; the events of what is above go on.
                if first or error.errno == errno.ENOSPC:
                    raise
            first = False

    def _watch(self, path: bytes, tell: bool) -> list[bytes]:
        """Watch one directory; returns the directories in it."""
        if path:
            fd = open_no_follow(os.path.join(self._top, path), _DIRECTORY)
        else:
            fd = own_processes.open_path(self._top, _DIRECTORY)
        try:
            wd = syscalls.inotify_add(self._queue, fd, _MASK)
            self._places[wd] = path
            known = self._known.setdefault(path, set())
            below = []
            with os.scandir(fd) as found:
                for entry in found:
                    name = os.fsencode(entry.name)
                    if _STAGE.fullmatch(name):
                        continue
                    whole = path + b"/" + name if path else name
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if is_directory and self._is_cover(whole, name):
                        continue
                    if tell and name not in known:
                        self._events.append(FileEvent(CREATED, whole))
                    known.add(name)
                    if self._recursive and is_directory:
                        below.append(whole)
            return below if self._only is None else []
        finally:
            os.close(fd)

    def _leave(self, path: bytes) -> None:
        """Remove the watches of a directory that was moved away: they report another place now."""
        prefix = path + b"/"
        for wd, place in list(self._places.items()):
            if place == path or place.startswith(prefix):
                syscalls.inotify_remove(self._queue, wd)
                del self._places[wd]
                self._known.pop(place, None)
