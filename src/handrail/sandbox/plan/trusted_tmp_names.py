"""What programs of the host trust in a shared ``/tmp``: sockets, and directories of known names.

A client of the wire may have the host's ``/tmp`` writable.  A command there could move a directory
of this user away and listen in its place, and the next ``tmux attach`` or ``ssh`` would talk to it.
So such directories, and sockets in ``/tmp`` itself, are read-only mounts: they can be neither
changed nor moved.

The kernel lists live sockets, which costs the same however full ``/tmp`` is; directories are read
as well, but only so many: a socket may belong to another network namespace.
"""

from __future__ import annotations

import os
import stat
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from handrail.sandbox.plan.directory_watch import DirectoryWatch

#: Prefixes of names that programs look for, or that hold the sockets of one session each.
TRUSTED = (
    b".ICE-unix", b".Test-unix", b".X11-unix", b".XIM-unix", b".font-unix", b"akonadi-",
    b"containers-user-", b"dbus-", b"emacs", b"gpg-", b"handrail-", b"kde-", b"keyring-",
    b"ksocket-", b"nvim", b"orbit-", b"podman-run-", b"pulse-", b"runtime-", b"screen",
    b"snap-private-tmp", b"ssh-", b"systemd-private-", b"tmux-", b"uscreens", b"vscode-", b"xdg-",
    b"zellij-",
)  # fmt: skip
#: Limit of this user's directories that are read.
MOST_DIRECTORIES = 512
#: Live sockets of this network namespace and their paths.
_TABLE = "/proc/net/unix"
#: A directory changed so shortly before it was read may have changed again in the same tick.
_UNSETTLED_NS = 50_000_000


class SocketIndex:
    """The trusted names in one shared directory; refreshed again and again.

    The second refresh watches the directory and those that are read in it (``directory_watch``);
    from then on only what was reported is examined.
    """

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._listed: tuple[int, int] = (0, 0)  # its ctime, and when it was read
        self._sticky = False
        self._trusted: set[bytes] = set()
        self._sockets: set[bytes] = set()
        self._directories: dict[bytes, None] = {}
        #: Whether there were more than are read.
        self._more = False
        #: By directory: ctime, when it was read, whether it has a socket.
        self._seen: dict[bytes, tuple[int, int, bool]] = {}
        self._lock = threading.Lock()
        self._watch: DirectoryWatch | None = None
        self._identity: tuple[int, ...] = ()

    def refresh(self, mount_table: bytes = b"") -> tuple[bytes, ...]:
        """The paths to be covered, sorted; it is watched if the mount table says that it can be."""
        try:
            status = os.stat(self.root)
        except OSError:
            return ()
        with self._lock:
            return self._refresh(status, mount_table)

    def _refresh(self, status: os.stat_result, mount_table: bytes) -> tuple[bytes, ...]:
        import time  # only for clients of the wire

        now = time.time_ns()
        identity = status.st_dev, status.st_ino, status.st_mode, hash(mount_table)
        if self._identity != identity:
            self.close()
            self._identity = identity
            self._listed = (0, 0)
        if self._watch is None or not self._take(self._watch):
            again = self._listed != (0, 0)
            if self._watch is None and again and mount_table:
                self._begin(status.st_dev, mount_table)
            if (
                self._watch is not None
                or self._listed[0] != status.st_ctime_ns
                or self._listed[1] - self._listed[0] < _UNSETTLED_NS
            ):
                self._list(sticky=bool(status.st_mode & stat.S_ISVTX))
                self._listed = (status.st_ctime_ns, now)
        found = {*self._trusted, *self._sockets, *self._live()}
        watch = self._watch
        for path in self._directories:
            if path not in found:
                seen = self._seen.get(path)
                # What changes in a directory that is watched takes it from those that were seen.
                known = seen is not None and watch is not None and watch.sees(path)
                if seen[2] if known and seen else self._has_socket(path, now):
                    found.add(path)
        return tuple(sorted(found))

    # --- watching -----------------------------------------------------------------------------

    def close(self) -> None:
        """Stop watching; each refresh stats every directory then."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self, device: int, mount_table: bytes) -> None:
        from handrail.sandbox.plan import directory_watch  # not for the first command
        from handrail.sandbox.plan.directory import devices

        if device not in devices(mount_table, directory_watch.LOCAL):
            return
        try:
            self._watch = directory_watch.DirectoryWatch()
            self._watch.add(self.root)
        except (OSError, directory_watch.Lost):
            self.close()
            return
        if not self._watch.sees(self.root):
            self.close()
        self._seen.clear()

    def _take(self, watch: DirectoryWatch) -> bool:
        """Examine what was reported; False: everything has to be."""
        from handrail.sandbox.plan.directory_watch import Lost

        names: set[bytes] = set()
        try:
            for path, name, _ in watch.changes():
                if path != self.root:
                    self._seen.pop(path, None)
                elif name:
                    names.add(os.path.join(path, name))
        except Lost:
            self.close()
            return False
        for path in names:
            gone = path in self._directories and self._more
            self._trusted.discard(path)
            self._sockets.discard(path)
            self._directories.pop(path, None)
            self._seen.pop(path, None)
            watch.drop(path)
            if gone:
                return False  # another one may be read in its place
            self._classify(path)
        return True

    # --- reading ------------------------------------------------------------------------------

    def _list(self, *, sticky: bool) -> None:
        self._sticky = sticky
        before = self._directories
        self._trusted, self._sockets, self._directories = set(), set(), {}
        self._more = False
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    if entry.is_symlink() or entry.is_file(follow_symlinks=False):
                        continue
                    self._add(entry.path, entry.is_dir(follow_symlinks=False))
        except OSError:
            pass  # unreadable: then for the command too
        for path in before.keys() - self._directories.keys():
            self._seen.pop(path, None)
            if self._watch is not None:
                self._watch.drop(path)

    def _classify(self, path: bytes) -> None:
        """Add what is at a path now, if that is to be covered or read."""
        try:
            kind = stat.S_IFMT(os.stat(path, follow_symlinks=False).st_mode)
        except OSError:
            return
        if kind not in (stat.S_IFLNK, stat.S_IFREG):
            self._add(path, kind == stat.S_IFDIR)

    def _add(self, path: bytes, is_directory: bool) -> None:
        ours = os.geteuid()
        if not is_directory:
            if _is_ours(path, ours, self._sticky, stat.S_IFSOCK):
                self._sockets.add(path)
        elif os.path.basename(path).startswith(TRUSTED):
            self._trusted.add(path)
        elif len(self._directories) >= MOST_DIRECTORIES:
            self._more = True
        elif _is_ours(path, ours, self._sticky, stat.S_IFDIR):
            self._directories[path] = None

    def _live(self) -> Iterable[bytes]:
        """Paths where the kernel lists a bound socket below the root: its directory, or itself."""
        ours = os.geteuid()
        start = b" " + self.root + b"/"
        try:
            with open(_TABLE, "rb") as table:
                text = table.read()
        except OSError:
            return set()
        found: set[bytes] = set()
        for line in text.split(b"\n") if start in text else ():
            at = line.find(start)
            path = os.path.normpath(line[at + 1 :]) if at >= 0 else self.root
            above = os.path.dirname(path)
            if path == self.root or above in found:
                continue
            if above != self.root and os.path.realpath(above) == above:
                path = above
            if _is_ours(path, ours, True, 0):
                found.add(path)
        return found

    def _has_socket(self, path: bytes, now: int) -> bool:
        try:
            if self._watch is not None and path not in self._watch:
                self._add_watch(self._watch, path)
            changed = os.stat(path, follow_symlinks=False).st_ctime_ns
            seen = self._seen.get(path)
            if seen is None or seen[0] != changed or seen[1] - changed < _UNSETTLED_NS:
                with os.scandir(path) as entries:
                    seen = changed, now, any(_is_socket(entry) for entry in entries)
                self._seen[path] = seen
        except OSError:
            return False
        return seen[2]

    def _add_watch(self, watch: DirectoryWatch, path: bytes) -> None:
        from handrail.sandbox.plan.directory_watch import Lost

        try:
            watch.add(path)
        except Lost:
            self.close()


def _is_socket(entry: os.DirEntry[bytes]) -> bool:
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
        return False
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False  # gone meanwhile; the next one may be a socket


def _is_ours(path: bytes, uid: int, sticky: bool, kind: int) -> bool:
    """Whether this user could move it; in a directory that is not sticky that is everything."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    if kind and stat.S_IFMT(status.st_mode) != kind:
        return False
    if stat.S_ISLNK(status.st_mode):
        return False
    return status.st_uid == uid or not sticky
