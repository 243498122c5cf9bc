"""Index of the git repositories below a writable root.

The first refresh walks the tree; later ones stat every directory and read only those that have
changed.  They compare ctime, which cannot be set back; a command could forge mtime.  A directory
that changed about when it was read is read again, for its clock may not have ticked since.

A directory shared with others, such as the one for temporary files, is examined less closely: only
this user's entries, only so many, nearest first.  It changes all the time, and no command should
wait for that or be refused for it.
"""

from __future__ import annotations

import os
import stat
import time

#: Large and made by tools: only two levels in them are examined, where package managers check out
#: repositories (``src/*``, ``@scope/*``).
SKIPPED = frozenset((b"node_modules", b".venv", b"__pycache__", b".tox", b".mypy_cache"))
MOST_DIRECTORIES = 200_000
#: How deep is looked.  Each directory on the way to a repository is a mount inside another, and one
#: below a thousand of them would keep every later command waiting for minutes.
MOST_LEVELS = 100
#: The same below a shared directory, where looking stops there.
MOST_SHARED = 128
#: Among the results: not everything was examined.
MORE = b""
#: What makes a directory one of git's.
GIT_DIRECTORY = (b"HEAD", b"commondir", b"objects", b"refs")
_LOOKS = stat.S_IRUSR | stat.S_IXUSR
#: A directory changed so shortly before it was read may have changed again in the same tick.
UNSETTLED_NS = 50_000_000

#: ctime, inode, when it was read, subdirectories, whether it has a .git, and which of its
#: subdirectories are large.
Directory = tuple[int, int, int, tuple[bytes, ...], bool, tuple[bytes, ...]]


class RepositoryIndex:
    """All ``.git`` below one root, the root's own not counted."""

    def __init__(self, root: bytes, *, shared: bool = False) -> None:
        self.root = root
        self._shared = shared
        self._seen: dict[bytes, Directory] = {}
        self._looked: tuple[bytes, ...] | None = None

    def is_large(self, most: int) -> bool:
        """Whether there are more directories than that now.

        If not, the ``refresh`` that follows at once has nothing left to do.
        """
        self._looked = self._look(most)
        return self._looked is None

    def refresh(self) -> tuple[bytes, ...]:
        """The paths of all ``.git``, and of directories of ours that we cannot read, sorted.

        Includes ``MORE`` if there was too much to examine.
        """
        looked, self._looked = self._looked, None
        return (self._look(None) or ()) if looked is None else looked

    def _look(self, most: int | None) -> tuple[bytes, ...] | None:
        """None: there are more directories than ``most``."""
        ours = os.geteuid()
        found: list[bytes] = []
        seen: dict[bytes, Directory] = {}
        before = self._seen
        todo = [self.root]
        deepest = self.root.rstrip(b"/").count(b"/") + MOST_LEVELS
        #: How many more levels are looked at, where not all are.
        levels: dict[bytes, int] = {}
        for path in todo:  # which grows meanwhile
            if most is not None and len(todo) > most:
                return None
            if len(seen) >= (MOST_SHARED if self._shared else MOST_DIRECTORIES):
                if not self._shared:
                    found.append(MORE)
                break
            if path.count(b"/") > deepest:
                continue
            try:
                status = os.stat(path, follow_symlinks=False)
            except OSError:
                continue
            if self._shared and status.st_uid != ours and path != self.root:
                continue  # our git does not trust it
            if status.st_mode & _LOOKS != _LOOKS and status.st_uid == ours:
                # Root could read it, but its sandboxed command only after a chmod.
                if not self._shared:
                    found.append(path)
                continue
            entry = before.get(path)
            if (
                entry is None
                or entry[:2] != (status.st_ctime_ns, status.st_ino)
                or entry[2] - status.st_ctime_ns < UNSETTLED_NS
            ):
                entry = _read(path, status, empty=not self._shared)
            seen[path] = entry
            if entry[4] and path != self.root:
                found.append(path + b"/.git")
            left = levels.get(path)
            if left is None:
                todo += entry[3]
                if not self._shared:
                    todo += entry[5]
                    levels.update(dict.fromkeys(entry[5], 1))
            elif left > 0:
                todo += entry[3]
                levels.update(dict.fromkeys(entry[3], left - 1))
            else:
                found += [git for below in entry[3] if _exists(git := below + b"/.git")]
        self._seen = seen
        return tuple(sorted(found))


def _read(path: bytes, status: os.stat_result, *, empty: bool) -> Directory:
    """``empty``: whether an empty ``.git`` counts; placeholders of sandboxes are empty."""
    now = time.time_ns()
    below: list[bytes] = []
    large: list[bytes] = []
    has_git = False
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name == b".git":
                    has_git = empty or not _is_empty(entry)
                elif entry.is_dir(follow_symlinks=False):
                    (large if name in SKIPPED else below).append(entry.path)
    except OSError:
        pass  # unreadable: our git would not trust it either
    return status.st_ctime_ns, status.st_ino, now, tuple(below), has_git, tuple(large)


def _exists(path: bytes) -> bool:
    try:
        os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return True


def _is_empty(entry: os.DirEntry[bytes]) -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    try:
        with os.scandir(entry) as inner:
            return next(inner, None) is None
    except FileNotFoundError:
        return True  # gone meanwhile; the rest of its directory is still to be read


def git_directories(pointer: bytes) -> list[bytes]:
    """Where a ``.git`` file points: the directory it names, and a worktree's common directory."""
    text = _line(pointer)
    if text is None or not text.startswith(b"gitdir:"):
        return []
    base = os.path.dirname(pointer)
    target = os.path.normpath(os.path.join(base, text.removeprefix(b"gitdir:").strip()))
    common = _line(os.path.join(target, b"commondir"))
    found = [target]
    if common is not None:
        found.append(os.path.normpath(os.path.join(target, common.strip())))
    return found


def is_git_directory(path: bytes) -> bool:
    """Whether git takes it for one: a HEAD with objects and references, its own or shared ones."""
    head, common, *own = (_exists(os.path.join(path, name)) for name in GIT_DIRECTORY)
    return head and (common or all(own))


def _line(path: bytes) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(fd, 4096).split(b"\n", 1)[0]
        return None if b"\0" in line else line  # no path has one
    except OSError:
        return None
    finally:
        os.close(fd)
