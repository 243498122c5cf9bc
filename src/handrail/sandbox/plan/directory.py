"""What is in a directory, as far as plans depend on it, and reading it.

Where the links of a directory count its subdirectories, one that has none is read in a third of the
time.  Many at once are read by programs of their own (``directory_reader``).
"""

from __future__ import annotations

import os
import stat
import time

from handrail.sandbox.plan import listing
from handrail.sandbox.plan.safe_open import check_is_gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from handrail.sandbox.plan.directory_reader import Record
    from handrail.sandbox.plan.directory_watch import DirectoryWatch

#: A directory changed so shortly before it was read may have changed again in the same tick.
UNSETTLED_NS = 50_000_000
#: Fewer directories are looked at sooner than watched.
FEW = 32
#: From here on they are read by programs of their own, some fifty while one starts.
MANY = 256
#: File systems in which the links of a directory count its subdirectories; elsewhere they may say
#: anything.
_COUNTING = frozenset((b"ext2", b"ext3", b"ext4", b"tmpfs", b"xfs"))
_OWNER_LOOKS = stat.S_IRUSR | stat.S_IXUSR


class Directory:
    """One directory: its status and what was in it."""

    __slots__ = (
        "_inside", "below", "changed", "closed", "count", "device", "git", "inode", "look", "mode",
        "names", "plain", "read", "uid", "watch",
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
        #: The paths of the directories in it.
        self.below: tuple[bytes, ...] = ()
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
        #: Whether it is this user's, can be read, and has nothing in it that is searched for.
        self.plain = False

    def has(self, path: bytes) -> bool:
        """Whether a directory is in it."""
        if len(self.below) < FEW:
            return path in self.below
        if self._inside is None:
            self._inside = frozenset(self.below)
        return path in self._inside

    def set_below(self, path: bytes, there: bool) -> None:
        """Whether a directory is there now: all others are as they were read."""
        if self.has(path) is not there:
            others = tuple([other for other in self.below if other != path])
            self.plain = False
            self._inside = None
            self.below = (*others, path) if there else others

    def is_current(self, status: os.stat_result) -> bool:
        """Whether it was read since it last changed."""
        return (
            self.changed == status.st_ctime_ns
            and self.inode == status.st_ino
            and self.device == status.st_dev
            and self.read - self.changed >= UNSETTLED_NS
        )


class Reader:
    """Reads the directories of one tree."""

    def __init__(
        self, root: bytes, concerns: Callable[[bytes], bool] | None, only_of: int | None
    ) -> None:
        """See ``DirectoryCache``."""
        self._root = root
        self._concerns = concerns
        self._only_of = only_of
        self._user = os.geteuid()
        self._mount_table = b""
        #: The devices on which a directory's links count its subdirectories; None: not known yet.
        self._counting: frozenset[int] | None = None

    def mounted(self, mount_table: bytes) -> None:
        """Another file system may be mounted."""
        self._mount_table, self._counting = mount_table, None

    def counting(self) -> frozenset[int]:
        if self._counting is None:
            self._counting = devices(self._mount_table, _COUNTING)
        return self._counting

    def read(self, path: bytes, status: os.stat_result, *, many: bool) -> Directory:
        """Read a directory, one of many, that has this status."""
        entry = self._read(path, status, many)
        if not (entry.below or entry.git or entry.names or entry.closed):
            entry.plain = self._is_open(entry.uid, entry.mode)
        return entry

    def _is_open(self, uid: int, mode: int) -> bool:
        return uid == self._user and mode & _OWNER_LOOKS == _OWNER_LOOKS

    def _read(self, path: bytes, status: os.stat_result, many: bool) -> Directory:
        entry = Directory(
            time.time_ns(), status.st_dev, status.st_ino, status.st_ctime_ns,
            status.st_mode, status.st_uid,
        )  # fmt: skip
        if self._only_of not in (None, status.st_uid) and path != self._root:
            return entry
        if many and status.st_nlink == 2 and self._read_leaf(entry, path):
            return entry
        found: list[os.DirEntry[bytes]] = []
        try:
            with os.scandir(path) as entries:
                found.extend(entries)
        except PermissionError:
            entry.closed = True
        except OSError as error:
            check_is_gone(path, error)
        entry.below = tuple([one.path for one in found if one.is_dir(follow_symlinks=False)])
        names = [one.name for one in found]
        entry.count = len(names)
        if b".git" in names:
            one = found[names.index(b".git")]
            is_empty = one.is_dir(follow_symlinks=False) and _is_empty(one.path)
            entry.git = 1 if is_empty else 2
        concerns = self._concerns
        if concerns is not None and concerns(b"/".join(names)):
            entry.names = tuple(name for name in names if concerns(name))
        return entry

    def _read_leaf(self, entry: Directory, path: bytes) -> bool:
        """Read a directory that has no others in it, which takes a third of the time.

        False: it may have some, or be closed.  Of the ``.git`` in it, a file then, the name is
        enough.
        """
        if not self._is_open(entry.uid, entry.mode) or entry.device not in self.counting():
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

    def read_many(self, paths: list[bytes]) -> Iterator[tuple[bytes, Directory]]:
        """Read directories at once; those that are left out have to be read one by one."""
        from handrail.sandbox.plan import directory_reader  # only for large trees

        if len(paths) < MANY or not directory_reader.usable():
            return
        now = time.time_ns()  # before any is read
        leaves = self._concerns is None and bool(self.counting())
        for path, record, names in directory_reader.read(paths, leaves=leaves):
            entry = self._taken_in(path, record, names, now, leaves)
            if entry is not None:
                yield path, entry

    def _taken_in(
        self, path: bytes, record: Record, names: bytes, now: int, leaves: bool
    ) -> Directory | None:
        """A directory that was read ahead; None: it has to be read once more."""
        _, _, count, _, device, inode, links, mode, uid, seconds, nanoseconds = record
        entry = Directory(now, device, inode, seconds * 1_000_000_000 + nanoseconds, mode, uid)
        ours = self._is_open(uid, mode)
        leaf = links == 2 and ours and device in self.counting()
        if self._only_of not in (None, uid) and path != self._root:
            return entry
        if leaves and links == 2:
            entry.git = 2 if count else 0
            entry.plain = not count
            return entry if leaf else None
        entry.count = count
        concerns = self._concerns
        if concerns is not None and concerns(names):
            entry.names = tuple(name for name in listing.names(names) if concerns(name))
        if not leaf:
            below = listing.directories(names)
            if below is None:
                return None
            start = os.path.join(path, b"")
            entry.below = tuple([start + name for name in below])
        if b".git\0" in names:
            kind = listing.kind(names, b".git")
            is_empty = kind == listing.DIRECTORY and _is_empty(os.path.join(path, b".git"))
            entry.git = (1 if is_empty else 2) if kind else 0
        entry.plain = ours and not (entry.below or entry.git or entry.names)
        return entry


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


def _is_empty(path: bytes) -> bool:
    """Whether there is nothing in a directory."""
    try:
        with os.scandir(path) as inner:
            return next(inner, None) is None
    except FileNotFoundError:
        return True  # gone meanwhile; the rest of its directory is still to be read
    except OSError:
        return False
