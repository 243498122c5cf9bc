"""What is in each directory of a tree, as far as plans depend on it.

The first look reads all directories.  The second one stats each, reads those that have changed and
watches them; from then on nothing is examined but what the kernel has reported.  A few directories
are watched when they were looked at often.  Where a tree cannot be watched (``directory_watch``),
each look stats every directory.  It compares ctime, which
cannot be set back; a command could forge mtime.  A directory that changed about when it was read is
read again, for its clock may not have ticked since.

Several threads may look at once: what is read while another thread takes events is not kept.
"""

from __future__ import annotations

import _thread
import os
import stat

from handrail.sandbox.plan.directory import FEW, MANY, Directory, Reader, devices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from handrail.sandbox.plan.directory_watch import DirectoryWatch

#: Bytes of events: about a thousand.
MUCH = 1 << 15
#: After so many looks a few directories are watched, too: each look after a change reads them.
OFTEN = 32
#: So many changes are remembered for searches of the tree.
_MOST_LOGGED = 1024
#: No two trees ever have the same one.
_revisions = iter(range(1, 1 << 62))


class DirectoryCache:
    """The directories below one root."""

    def __init__(
        self,
        root: bytes,
        concerns: Callable[[bytes], bool] | None = None,
        is_mask: Callable[[bytes, tuple[int, int]], bool] | None = None,
        only_of: int | None = None,
    ) -> None:
        """``concerns``: whether a name, or one of several with ``/`` between, may match a pattern.

        ``is_mask``: whether a directory was made by a sandbox to cover a missing name.
        ``only_of``: only directories of this user are read, and the root.
        """
        self.root = root
        #: Another with each change of what was noted, while the tree is watched.
        self.revision = next(_revisions)
        #: Counts the changes that matter for searches; the last ones, and the number of the one
        #: before them.
        self.mark = 1
        self._log: list[tuple[bytes, bool]] = []
        self._forgotten = 1
        self._concerns = concerns
        self._is_mask = is_mask
        self._only_of = only_of
        self._reader = Reader(root, concerns, only_of)
        self._entries: dict[bytes, Directory] = {}
        self._look = 0
        #: How many looks there were.
        self._looks = 0
        self._lock = _thread.allocate_lock()
        self._watch: DirectoryWatch | None = None
        #: What it raises when it knows no more.
        self._lost: type[Exception] = Exception
        #: Whether a part of it cannot be watched, as long as the same is mounted.
        self._unwatchable = False
        self._devices: frozenset[int] = frozenset()
        self._mount_table = b""
        self._root: tuple[int, int] | None = None
        #: Counts when events were taken.
        self._taken = 0
        #: Names whose changes matter, and paths that are missing and may be covered by a sandbox.
        self._names = {b".git"}
        self._missing: set[bytes] = set()
        #: The paths that were noted, and the directories around them.
        self._around: set[bytes] = set()
        #: Of those that are missing: which were found covered, and how; their sandbox may leave
        #: them behind.
        self._covered: dict[bytes, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def watched(self) -> bool:
        return self._watch is not None

    def refresh(self, look: int, mount_table: bytes) -> None:
        """Begin a look: take what the kernel has reported.  Once for each number of a look."""
        if look == self._look:
            return
        with self._lock:
            self._check_root(mount_table)
            if self._watch is not None:
                self._take()
            elif mount_table and not self._unwatchable:
                many = len(self._entries) > FEW
                if many or self._looks > OFTEN:
                    self._begin(mount_table, many=many)
            self._look = look
            self._looks += 1

    @property
    def sees_names(self) -> bool:
        """Whether new names in the root are noticed by the watch."""
        return self._watch is not None and self._watch.sees(self.root)

    def sees(self, path: bytes) -> bool:
        """Whether a change of what is at a path is noticed by the watch."""
        return self._watch is not None and self._watch.sees(os.path.dirname(path))

    def note(self, paths: Iterable[tuple[bytes, bool]]) -> None:
        """Count changes of these paths from the next look on; True beside one that is missing."""
        with self._lock:
            for path, missing in paths:
                self._names.add(os.path.basename(path))
                around = path
                while len(around) >= len(self.root) and around not in self._around:
                    self._around.add(around)
                    around = os.path.dirname(around)
                if missing:
                    self._missing.add(path)
                else:
                    self._missing.discard(path)

    def changes(self, since: int, until: int) -> dict[bytes, bool] | None:
        """The directories that changed between two marks, and whether with all below them.

        None: that is not known any more.
        """
        with self._lock:
            if not self._forgotten <= since <= until <= self.mark:
                return None
            log = self._log[since - self._forgotten : until - self._forgotten]
        found: dict[bytes, bool] = {}
        for path, whole in log:
            found[path] = found.get(path, False) or whole
        return found

    def known(self) -> tuple[dict[bytes, Directory], object]:
        """The directories that were read; those with this watch are as they are now."""
        return self._entries, self._watch or self

    def get(self, path: bytes) -> Directory:
        """A directory as it is now; raises OSError when there is none."""
        entry = self._entries.get(path)
        watch = self._watch
        if entry is not None and (entry.look == self._look or entry.watch is (watch or self)):
            return entry
        if watch is not None:
            return self._get_watched(watch, path, entry)
        look = self._look
        status = os.stat(path, follow_symlinks=False)
        if entry is None or not entry.is_current(status):
            # One that changed since it was read is likely to change again.
            many = entry is not None or len(self._entries) > FEW
            entry = self._reader.read(path, status, many=many)
        entry.look, entry.watch = look, None
        self._entries[path] = entry
        return entry

    def read_ahead(self, paths: list[bytes]) -> None:
        """Read what is not known of many directories, which is faster than one by one."""
        if len(paths) < MANY or self._watch is not None:
            return
        look = self._look
        missing = [path for path in paths if path not in self._entries]
        for path, entry in self._reader.read_many(missing):
            entry.look = look
            self._entries[path] = entry

    def _get_watched(
        self, watch: DirectoryWatch, path: bytes, entry: Directory | None
    ) -> Directory:
        taken, look = self._taken, self._look
        if path not in watch:
            try:
                self._add_watch(watch, path, entry)
            except self._lost:
                self._give_up()
        status = os.stat(path, follow_symlinks=False)
        if entry is None or not entry.is_current(status):
            entry = self._reader.read(path, status, many=len(self._entries) > FEW)
        if status.st_dev not in self._devices:
            self._give_up()
        with self._lock:
            if taken == self._taken:
                entry.look, entry.watch = look, watch
                self._entries[path] = entry
        return entry

    def _add_watch(self, watch: DirectoryWatch, path: bytes, entry: Directory | None) -> None:
        contents = self._only_of is None or path == self.root
        if not contents:
            known = entry is not None and entry.uid == self._only_of
            contents = known or os.stat(path, follow_symlinks=False).st_uid == self._only_of
        with self._lock:
            if watch is self._watch:
                watch.add(path, contents=contents)

    def close(self) -> None:
        """Stop watching; each look stats every directory then."""
        with self._lock:
            self._stop()

    def has_much_to_take(self) -> bool:
        """Whether so much was reported that taking it belongs into a thread."""
        watch = self._watch
        return watch is not None and watch.pending() > MUCH

    # --- watching -----------------------------------------------------------------------------

    def _check_root(self, mount_table: bytes) -> None:
        """Begin anew where another directory is mounted, or at the path of the root."""
        try:
            status = os.stat(self.root, follow_symlinks=False)
            now = status.st_dev, status.st_ino
        except OSError:
            now = None
        if now != self._root or mount_table != self._mount_table:
            self._root, self._mount_table = now, mount_table
            self._reader.mounted(mount_table)
            self._unwatchable = False
            self._stop()

    def _give_up(self) -> None:
        self._unwatchable = True
        self.close()

    def _begin(self, mount_table: bytes, *, many: bool) -> None:
        from handrail.sandbox.plan import directory_watch  # not for the first command

        if not many and directory_watch.queues() >= directory_watch.MOST_SMALL:
            return
        self._devices = devices(mount_table, directory_watch.LOCAL)
        if self._root is None or self._root[0] not in self._devices:
            return
        try:
            self._lost = directory_watch.Lost
            self._watch = directory_watch.DirectoryWatch()
        except OSError:
            return  # each look stats every directory
        self._forget()

    def _stop(self) -> None:
        self._forget()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _forget(self) -> None:
        """Nothing is known of what was before."""
        self.revision = next(_revisions)
        self._taken += 1
        self._log.clear()
        self.mark += 1
        self._forgotten = self.mark

    def _note_change(self, path: bytes, *, whole: bool) -> None:
        if len(self._log) >= _MOST_LOGGED:
            self._forgotten += len(self._log) // 2
            del self._log[: len(self._log) // 2]
        self._log.append((path, whole))
        self.mark += 1

    def _take(self) -> None:
        watch = self._watch
        assert watch is not None  # noqa: S101 (by the caller)
        try:
            # Each once: what matters is how it looks now.
            events = dict.fromkeys(watch.changes())
        except self._lost:
            self._stop()
            return
        self._taken += len(events)
        for path, name, is_directory in events:
            self._changed(watch, path, name, is_directory)
        for place, cover in list(self._covered.items()):
            if _look_of(place) != cover:
                path, name = os.path.split(place)
                self._changed(watch, path, name, is_directory=True)

    def _changed(self, watch: DirectoryWatch, path: bytes, name: bytes, is_directory: bool) -> None:
        if name and path.endswith(b"/.git"):
            self._git_changed(path)
        if not name:
            self._entries.pop(path, None)  # its mode or owner, or it is gone
            if path in self._missing and self._is_still_missing(path):
                return
            self._note_change(path, whole=True)
            if path not in self._around:
                return
        elif is_directory:
            place = path + b"/" + name if path != b"/" else b"/" + name
            entry = self._entries.get(path)
            unknown = place not in self._entries and place not in watch
            was_missing = unknown and entry is not None and not entry.has(place)
            if was_missing and self._is_still_missing(place):
                return
            self._drop(watch, place)
            self._note_change(place, whole=True)
            if name == b".git" or (self._concerns is not None and self._concerns(name)):
                self._entries.pop(path, None)
                self._note_change(path, whole=False)
            elif entry is not None:
                entry.set_below(place, _is_directory(place))
            if place not in self._around:
                return
        elif name == b".git" or (self._concerns is not None and self._concerns(name)):
            self._entries.pop(path, None)
            self._note_change(path, whole=False)
        elif name not in self._names:
            return
        self.revision = next(_revisions)

    def _git_changed(self, path: bytes) -> None:
        """A ``.git`` that was empty may be one of git's now."""
        around = os.path.dirname(path)
        entry = self._entries.get(around)
        if entry is not None and entry.git == 1:
            self._entries.pop(around)
            self._entries.pop(path, None)
            self._note_change(around, whole=False)
            self.revision = next(_revisions)

    def _is_still_missing(self, path: bytes) -> bool:
        """Whether a path is missing, or covered by a sandbox that was or is being set up."""
        now = _look_of(path)
        self._covered.pop(path, None)
        if now is None:
            return True
        if path not in self._missing or self._is_mask is None or not self._is_mask(path, now[:2]):
            return False
        self._covered[path] = now
        return True

    def _drop(self, watch: DirectoryWatch, path: bytes) -> None:
        """Forget a directory and what was below it: another may be at its path."""
        todo = [path]
        for place in todo:
            watch.drop(place)
            entry = self._entries.pop(place, None)
            if entry is not None:
                todo += entry.below


def _look_of(path: bytes) -> tuple[int, int, int, int, int] | None:
    """What an empty directory at a path does not keep when anything is put into it."""
    try:
        now = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_ctime_ns, now.st_nlink, now.st_size


def _is_directory(path: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path, follow_symlinks=False).st_mode)
    except OSError:
        return False
