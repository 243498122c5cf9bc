"""What is in each directory of a tree, as far as plans depend on it.

The first look reads all directories.  The second one stats each, reads those that have changed and
watches them; from then on nothing is examined but what the kernel has reported.  Where a tree
cannot be watched (``directory_watch``), each look stats every directory.  It compares ctime, which
cannot be set back; a command could forge mtime.  A directory that changed about when it was read is
read again, for its clock may not have ticked since.

Several threads may look at once: what is read while another thread takes events is not kept.
"""

from __future__ import annotations

import _thread
import itertools
import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from handrail.sandbox.plan.directory_watch import DirectoryWatch

#: A directory changed so shortly before it was read may have changed again in the same tick.
UNSETTLED_NS = 50_000_000
#: Fewer directories are looked at sooner than watched.
FEW = 32
#: File systems in which the links of a directory count its subdirectories; elsewhere they may say
#: anything.
_COUNTING = frozenset((b"ext2", b"ext3", b"ext4", b"tmpfs", b"xfs"))
_OWNER_LOOKS = stat.S_IRUSR | stat.S_IXUSR
#: Bytes of events: about a thousand.
MUCH = 1 << 15
#: So many changes are remembered for searches of the tree.
_MOST_LOGGED = 1024
#: No two trees ever have the same one.
_revisions = itertools.count(1)


class Directory:
    """One directory: its status and what was in it."""

    __slots__ = (
        "_below", "_inside", "changed", "closed", "count", "device", "git", "inode", "look", "mode",
        "names", "read", "uid", "watch",
    )  # fmt: skip

    def __init__(
        self, read: int, device: int, inode: int, changed: int, mode: int, uid: int
    ) -> None:
        #: When, and the status it had then; ``changed`` is its ctime.
        self.read = read
        self.device, self.inode, self.changed = device, inode, changed
        self.mode, self.uid = mode, uid
        #: The last look in which its status was compared.
        self.look = 0
        #: Which reports its changes since.
        self.watch: DirectoryWatch | None = None
        self._below: tuple[bytes, ...] = ()
        #: The same, for questions, where they are many.
        self._inside: frozenset[bytes] | None = None
        #: How many names it has.
        self.count = 0
        #: Whether it has a ``.git``: an empty directory (1), something else (2).
        self.git = 0
        #: The names that patterns may match.
        self.names: tuple[bytes, ...] = ()
        #: Whether it cannot be read.
        self.closed = False

    @property
    def below(self) -> tuple[bytes, ...]:
        """The paths of the directories in it."""
        return self._below

    @below.setter
    def below(self, paths: tuple[bytes, ...]) -> None:
        self._below, self._inside = paths, None

    def has(self, path: bytes) -> bool:
        """Whether a directory is in it."""
        if len(self._below) < FEW:
            return path in self._below
        if self._inside is None:
            self._inside = frozenset(self._below)
        return path in self._inside

    def set_below(self, path: bytes, there: bool) -> None:
        """Whether a directory is there now: all others are as they were read."""
        if self.has(path) is not there:
            others = tuple([other for other in self._below if other != path])
            self.below = (*others, path) if there else others

    def is_current(self, status: os.stat_result) -> bool:
        """Whether it was read since it last changed."""
        return (
            self.changed == status.st_ctime_ns
            and self.inode == status.st_ino
            and self.device == status.st_dev
            and self.read - self.changed >= UNSETTLED_NS
        )


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
        #: Another with each change that matters, while the tree is watched.
        self.revision = next(_revisions)
        #: Counts these changes; the last ones, and the number of the one before them.
        self.mark = 1
        self._log: list[tuple[bytes, bool]] = []
        self._forgotten = 1
        self._concerns = concerns
        self._is_mask = is_mask
        self._only_of = only_of
        self._entries: dict[bytes, Directory] = {}
        self._look = 0
        self._lock = _thread.allocate_lock()
        self._watch: DirectoryWatch | None = None
        #: Whether a part of it cannot be watched, as long as the same is mounted.
        self._unwatchable = False
        self._devices: frozenset[int] = frozenset()
        self._mount_table = b""
        #: The devices on which a directory's links count its subdirectories; None: not known yet.
        self._counting: frozenset[int] | None = None
        self._user = os.geteuid()
        self._root: tuple[int, int] | None = None
        #: Counts when events were taken.
        self._taken = 0
        #: Names whose changes matter, and paths that are missing and may be covered by a sandbox.
        self._names = {b".git"}
        self._missing: set[bytes] = set()
        #: Of those: which were found covered, and how; their sandbox may leave them behind.
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
            elif mount_table and len(self._entries) > FEW and not self._unwatchable:
                self._begin(mount_table)
            self._look = look

    def sees(self, path: bytes) -> bool:
        """Whether a change of what is at a path is noticed by the watch."""
        return self._watch is not None and self._watch.sees(os.path.dirname(path))

    def note(self, paths: Iterable[tuple[bytes, bool]]) -> None:
        """Count changes of these paths from the next look on; True beside one that is missing."""
        with self._lock:
            for path, missing in paths:
                self._names.add(os.path.basename(path))
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
            entry = self._read(path, status)
        entry.look, entry.watch = look, None
        self._entries[path] = entry
        return entry

    def _get_watched(
        self, watch: DirectoryWatch, path: bytes, entry: Directory | None
    ) -> Directory:
        from handrail.sandbox.plan.directory_watch import Lost

        taken, look = self._taken, self._look
        if path not in watch:
            try:
                foreign = (
                    self._only_of is not None
                    and path != self.root
                    and (os.stat(path, follow_symlinks=False).st_uid != self._only_of)
                )
                with self._lock:
                    if watch is self._watch:
                        watch.add(path, contents=not foreign)
            except Lost:
                self._give_up()
        status = os.stat(path, follow_symlinks=False)
        if entry is None or not entry.is_current(status):
            entry = self._read(path, status)
        if status.st_dev not in self._devices:
            self._give_up()
        with self._lock:
            if taken == self._taken:
                entry.look, entry.watch = look, watch
                self._entries[path] = entry
        return entry

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
            self._counting = None
            self._unwatchable = False
            self._stop()

    def _give_up(self) -> None:
        self._unwatchable = True
        self.close()

    def _begin(self, mount_table: bytes) -> None:
        from handrail.sandbox.plan import directory_watch  # not for the first command

        self._devices = devices(mount_table, directory_watch.LOCAL)
        if self._root is None or self._root[0] not in self._devices:
            return
        try:
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
        from handrail.sandbox.plan.directory_watch import Lost

        watch = self._watch
        assert watch is not None  # noqa: S101 (by the caller)
        try:
            for path, name, is_directory in watch.changes():
                self._taken += 1
                self._changed(watch, path, name, is_directory)
        except Lost:
            self._stop()
            return
        for place, cover in list(self._covered.items()):
            if _look_of(place) != cover:
                path, name = os.path.split(place)
                self._changed(watch, path, name, is_directory=True)

    def _changed(self, watch: DirectoryWatch, path: bytes, name: bytes, is_directory: bool) -> None:
        if not name:
            self._entries.pop(path, None)  # its mode or owner, or it is gone
            if path in self._missing and self._is_still_missing(path):
                return
            self._note_change(path, whole=True)
        elif is_directory:
            place = os.path.join(path, name)
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
        elif name in self._names or (self._concerns is not None and self._concerns(name)):
            self._entries.pop(path, None)
            self._note_change(path, whole=False)
        else:
            return
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

    # --- reading ------------------------------------------------------------------------------

    def _read(self, path: bytes, status: os.stat_result) -> Directory:
        entry = _entry(time.time_ns(), status)
        if self._only_of not in (None, status.st_uid) and path != self.root:
            return entry
        if status.st_nlink == 2 and self._read_leaf(entry, path, status.st_dev):
            return entry
        found: list[os.DirEntry[bytes]] = []
        try:
            with os.scandir(path) as entries:
                found.extend(entries)
        except PermissionError:
            entry.closed = True
        except OSError:
            pass  # gone meanwhile
        entry.below = tuple([one.path for one in found if one.is_dir(follow_symlinks=False)])
        names = [one.name for one in found]
        entry.count = len(names)
        if b".git" in names:
            entry.git = 1 if _is_empty(found[names.index(b".git")]) else 2
        concerns = self._concerns
        if concerns is not None and concerns(b"/".join(names)):
            entry.names = tuple(name for name in names if concerns(name))
        return entry

    def _read_leaf(self, entry: Directory, path: bytes, device: int) -> bool:
        """Read a directory that has no others in it, which takes a third of the time.

        False: it may have some, or be closed.  Of the ``.git`` in it, a file then, the name is
        enough.
        """
        if entry.uid != self._user or entry.mode & _OWNER_LOOKS != _OWNER_LOOKS:
            return False
        if self._counting is None:
            if len(self._entries) <= FEW:
                return False
            self._counting = devices(self._mount_table, _COUNTING)
        if device not in self._counting:
            return False
        concerns = self._concerns
        try:
            if concerns is None:
                os.stat(path + b"/.git", follow_symlinks=False)
                entry.git = 2
                return True
            names = os.listdir(path)
        except FileNotFoundError:
            return concerns is None
        except OSError:
            return False
        entry.count = len(names)
        if b".git" in names:
            entry.git = 2
        if concerns(b"/".join(names)):
            entry.names = tuple(name for name in names if concerns(name))
        return True


def devices(mount_table: bytes, kinds: frozenset[bytes]) -> frozenset[int]:
    """The devices of a mount table that are file systems of these kinds and of no other."""
    found: set[int] = set()
    others: set[int] = set()
    for line in mount_table.splitlines():
        fields, _, rest = line.partition(b" - ")
        try:
            major, minor = fields.split(b" ", 3)[2].split(b":")
            device = os.makedev(int(major), int(minor))
            (found if rest.split(b" ", 1)[0] in kinds else others).add(device)
        except (IndexError, ValueError):
            continue
    return frozenset(found - others)


def _entry(read: int, status: os.stat_result) -> Directory:
    return Directory(
        read, status.st_dev, status.st_ino, status.st_ctime_ns, status.st_mode, status.st_uid
    )


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


def _is_empty(entry: os.DirEntry[bytes]) -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    try:
        with os.scandir(entry) as inner:
            return next(inner, None) is None
    except FileNotFoundError:
        return True  # gone meanwhile; the rest of its directory is still to be read
    except OSError:
        return False
