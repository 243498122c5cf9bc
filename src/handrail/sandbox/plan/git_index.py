"""Index of the git repositories below a writable root.

``directory_cache`` has what is in the directories, and notices what changes.

A directory shared with others, such as the one for temporary files, is examined less closely: only
this user's entries, only so many at a time, nearest first.  It changes all the time, and no command
should wait for that or be refused for it.  Those that are watched and hold nothing are passed over,
so the next ones are examined the next time.
"""

from __future__ import annotations

import os
import stat

from handrail.sandbox.plan.directory_cache import Directory, DirectoryCache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Large and made by tools: only two levels in them are examined, where package managers check out
#: repositories (``src/*``, ``@scope/*``).
SKIPPED = frozenset((b"node_modules", b".venv", b"__pycache__", b".tox", b".mypy_cache"))
#: The same of names that begin so: ``.venv-3.13``.
_SKIPPED_PREFIX = b".venv-"
MOST_DIRECTORIES = 200_000
#: How deep is looked.  Each directory on the way to a repository is a mount inside another, and one
#: below a thousand of them would keep every later command waiting for minutes.
MOST_LEVELS = 100
#: The same below a shared directory, where looking stops there until the next time.
MOST_SHARED = 4096
#: Among the results: not everything was examined.
MORE = b""
#: What makes a directory one of git's.
GIT_DIRECTORY = (b"HEAD", b"commondir", b"objects", b"refs")
_LOOKS = stat.S_IRUSR | stat.S_IXUSR


class RepositoryIndex:
    """All ``.git`` below one root, the root's own not counted."""

    def __init__(self, directories: DirectoryCache, *, shared: bool = False) -> None:
        self.directories = directories
        self.root = directories.root
        self._shared = shared
        self._looked: tuple[bytes, ...] | None = None
        #: What was found, and the revision of the directories it was found in.
        self._found: tuple[int, tuple[bytes, ...]] = (-1, ())

    def is_large(self, most: int) -> bool:
        """Whether there are more directories than that to be examined now.

        If not, the ``refresh`` that follows at once has nothing left to do.
        """
        if self._is_known():
            return False
        self._looked = None
        if self.directories.watched and len(self.directories) > most:
            return True
        self._looked = self._look(most)
        return self._looked is None

    def refresh(self) -> tuple[bytes, ...]:
        """The paths of all ``.git``, and of directories of ours that we cannot read, sorted.

        Includes ``MORE`` if there was too much to examine.  ``directories`` have begun a look.
        """
        looked, self._looked = self._looked, None
        if looked is not None:
            return looked
        if self._is_known():
            return self._found[1]
        return self._look(None) or ()

    def _is_known(self) -> bool:
        return self.directories.watched and self._found[0] == self.directories.revision

    def _look(self, most: int | None) -> tuple[bytes, ...] | None:
        """None: there are more directories than ``most``."""
        ours = os.geteuid()
        directories = self.directories
        revision = directories.revision if directories.watched else -1
        found: list[bytes] = []
        seen, pending = 0, 1
        deepest = self.root.rstrip(b"/").count(b"/") + MOST_LEVELS
        #: Directories in the order of their depth, and how many more levels are looked at; it
        #: grows while it is walked.
        waiting: list[tuple[Sequence[bytes], int | None]] = [((self.root,), None)]
        known, watch = directories.known()
        for path, left in ((path, left) for paths, left in waiting for path in paths):
            if most is not None and pending > most:
                return None
            if seen >= (MOST_SHARED if self._shared else MOST_DIRECTORIES):
                if self._shared:
                    revision = -1  # the next look goes on
                else:
                    found.append(MORE)
                break
            name = path[path.rfind(b"/") + 1 :]
            if path != self.root:
                if name == b".git":
                    continue
                if left is None and (name in SKIPPED or name.startswith(_SKIPPED_PREFIX)):
                    if self._shared:
                        continue
                    left = 2
                if path.count(b"/") > deepest:
                    continue
            try:
                one = known.get(path)
                entry = one if one and one.watch is watch else directories.get(path)
            except OSError:
                continue
            status = entry.status
            if self._shared and status.st_uid != ours and path != self.root:
                continue  # our git does not trust it
            if status.st_mode & _LOOKS != _LOOKS and status.st_uid == ours:
                # Root could read it, but its sandboxed command only after a chmod.
                if not self._shared:
                    found.append(path)
                continue
            seen += 1
            # Placeholders of sandboxes are empty; in a shared directory that does not count.
            if entry.git > self._shared and path != self.root:
                found.append(path + b"/.git")
            if left == 1:
                for place in entry.below:
                    git, closed = self._at_the_end(place)
                    found += [place + b"/.git"] * git
                    revision = -1 if closed else revision
            else:
                below: Sequence[bytes] = entry.below
                if self._shared:
                    below = [place for place in below if not _is_plain(known.get(place), watch)]
                pending += len(below)
                waiting.append((below, None if left is None else left - 1))
        result = tuple(sorted(found))
        self._found = revision, result
        return result

    def _at_the_end(self, path: bytes) -> tuple[bool, bool]:
        """Whether a directory that is not examined further has a ``.git``, and cannot be read."""
        if path.endswith(b"/.git"):
            return False, False
        try:
            entry = self.directories.get(path)
        except OSError:
            return False, False
        return _exists(path + b"/.git") if entry.closed else entry.git > 0, entry.closed


def _exists(path: bytes) -> bool:
    try:
        os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return True


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


def _is_plain(entry: Directory | None, watch: object) -> bool:
    """Whether a directory is known to have neither a ``.git`` nor directories in it."""
    return entry is not None and entry.watch is watch and not entry.below and not entry.git
