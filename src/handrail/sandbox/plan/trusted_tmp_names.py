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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """The trusted names in one shared directory; refreshed again and again."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._listed: tuple[int, int] = (0, 0)  # its ctime, and when it was read
        self._trusted: list[bytes] = []
        self._sockets: list[bytes] = []
        self._directories: list[bytes] = []
        #: By directory: ctime, when it was read, whether it has a socket.
        self._seen: dict[bytes, tuple[int, int, bool]] = {}

    def refresh(self) -> tuple[bytes, ...]:
        """The paths to be covered, sorted."""
        import time  # only for clients of the wire

        now = time.time_ns()
        try:
            status = os.stat(self.root)
        except OSError:
            return ()
        if (
            self._listed[0] != status.st_ctime_ns
            or self._listed[1] - self._listed[0] < _UNSETTLED_NS
        ):
            self._list(sticky=bool(status.st_mode & stat.S_ISVTX))
            self._listed = (status.st_ctime_ns, now)
        found = {*self._trusted, *self._sockets, *self._live()}
        for path in self._directories:
            if path not in found and self._has_socket(path, now):
                found.add(path)
        return tuple(sorted(found))

    def _list(self, *, sticky: bool) -> None:
        ours = os.geteuid()
        trusted: list[bytes] = []
        sockets: list[bytes] = []
        directories: list[bytes] = []
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    if entry.is_symlink() or entry.is_file(follow_symlinks=False):
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        if _is_ours(entry.path, ours, sticky, stat.S_IFSOCK):
                            sockets.append(entry.path)
                    elif entry.name.startswith(TRUSTED):
                        trusted.append(entry.path)
                    elif len(directories) < MOST_DIRECTORIES and _is_ours(
                        entry.path, ours, sticky, stat.S_IFDIR
                    ):
                        directories.append(entry.path)
        except OSError:
            pass  # unreadable: then for the command too
        self._trusted, self._sockets, self._directories = trusted, sockets, directories
        kept = set(directories)
        self._seen = {path: seen for path, seen in self._seen.items() if path in kept}

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
            changed = os.stat(path, follow_symlinks=False).st_ctime_ns
            seen = self._seen.get(path)
            if seen is None or seen[0] != changed or seen[1] - changed < _UNSETTLED_NS:
                with os.scandir(path) as entries:
                    seen = changed, now, any(_is_socket(entry) for entry in entries)
                self._seen[path] = seen
        except OSError:
            return False
        return seen[2]


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
