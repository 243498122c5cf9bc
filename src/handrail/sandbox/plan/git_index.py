"""Index of the git repositories below a writable root.

``directory_cache`` has what is in the directories, and notices what changes.

A directory shared with others, such as the one for temporary files, is examined less closely: only
this user's entries, only so many at a time, nearest first.  It changes all the time, and no command
should wait for that or be refused for it.  The next ones are examined the next time.
"""

from __future__ import annotations

import os
import stat

from handrail.sandbox.plan.safe_open import Refused, check_is_gone
from handrail.sandbox.plan.tree_walk import TreeWalk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.sandbox.plan.directory import Directory
    from handrail.sandbox.plan.directory_cache import DirectoryCache
    from handrail.sandbox.plan.tree_walk import Found, Step

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
MOST_SHARED = 16_384
#: Among the results: not everything was examined.
MORE = b""
#: What makes a directory one of git's.
COMMON = b"commondir"  # a file: the directory that has the rest
GIT_DIRECTORY = (b"HEAD", COMMON, b"objects", b"refs")
_LOOKS = stat.S_IRUSR | stat.S_IXUSR


class RepositoryIndex(TreeWalk):
    """All ``.git`` below one root, the root's own not counted."""

    #: The level of a directory where all levels are looked at; else it is how many more are.
    FIRST = -1

    def __init__(self, directories: DirectoryCache, *, shared: bool = False) -> None:
        super().__init__(directories)
        self._shared = self.by_portions = shared
        self._ours = os.geteuid()
        self._deepest = self.root.rstrip(b"/").count(b"/") + MOST_LEVELS
        self._looked: Found | None = None

    def is_large(self, most: int) -> bool:
        """Whether there are more directories than that to be examined now.

        If not, the ``refresh`` that follows at once has nothing left to do.
        """
        self._looked = None
        if self.known() is not None:
            return False
        try:
            found = self.look(most)
        except Refused:
            return True  # as ``refresh`` will say
        if not self.directories.watched:
            self._looked = found
        return found is None

    def refresh(self) -> tuple[bytes, ...]:
        """The paths of all ``.git``, and of directories of ours that we cannot read, sorted.

        Includes ``MORE`` if there was too much to examine.  ``directories`` have begun a look.
        """
        looked, self._looked = self._looked, None
        looked = looked or self.known() or self.look()
        return looked.result if looked is not None else ()

    # --- TreeWalk -----------------------------------------------------------------------------

    def enter(self, path: bytes, level: int) -> int | None:
        name = path[path.rfind(b"/") + 1 :]
        if name == b".git":
            return None
        if level >= 0:
            return level - 1 or None
        if name in SKIPPED or name.startswith(_SKIPPED_PREFIX):
            level = 2
            if self._shared:
                return None
        return None if path.count(b"/") > self._deepest else level

    def opens(self, path: bytes, entry: Directory) -> bool:
        if self._is_foreign(path, entry):
            return False  # our git does not trust it
        # Root could read it, but its sandboxed command only after a chmod.
        return entry.mode & _LOOKS == _LOOKS or entry.uid != self._ours

    def visit(
        self, path: bytes, level: int, entry: Directory, found: Found
    ) -> tuple[list[bytes], list[Step]]:
        if not self.opens(path, entry):
            return [] if self._shared else [path], []
        found.seen += 1
        # Placeholders of sandboxes are empty; in a shared directory that does not count.
        results = [path + b"/.git"] if entry.git > self._shared and path != self.root else []
        if entry.git == 1 and self._shared and self._is_filled(path + b"/.git"):
            results = [path + b"/.git"]
        if not entry.below:
            return results, []
        if level != 1:
            return results, self.below(level, entry)
        for place in entry.below:
            git, closed = self._at_the_end(place)
            results += [place + b"/.git"] * git
            if closed:
                found.mark = 0  # what is in it is not reported
        return results, []

    def _is_filled(self, path: bytes) -> bool:
        """Whether a directory that was empty has something in it; it is watched from now on."""
        try:
            entry = self.directories.get(path)
        except OSError:
            return False
        return entry.count > 0 or entry.closed

    def limit(self) -> int:
        return MOST_SHARED if self._shared else MOST_DIRECTORIES

    def stop(self, found: Found) -> None:
        if not self._shared:
            found.by_directory[MORE] = (MORE,)

    def needs_all(self, path: bytes) -> bool:
        # The end of a directory of tools is examined without a visit.
        names = () if self._shared else path[len(self.root) :].split(b"/")
        return any(name in SKIPPED or name.startswith(_SKIPPED_PREFIX) for name in names)

    def _is_foreign(self, path: bytes, entry: Directory) -> bool:
        return self._shared and entry.uid != self._ours and path != self.root

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
    text = _path_in(pointer)
    if text is None or not text.startswith(b"gitdir:"):
        return []
    base = os.path.dirname(pointer)
    name = text.removeprefix(b"gitdir:").removeprefix(b" ")
    target = os.path.normpath(os.path.join(base, name))
    common = _path_in(os.path.join(target, COMMON))
    found = [target]
    if common is not None:
        found.append(os.path.normpath(os.path.join(target, common)))
    return found


def is_git_directory(path: bytes) -> bool:
    """Whether git takes it for one: a HEAD with objects and references, its own or shared ones."""
    head, common, *own = (_exists(os.path.join(path, name)) for name in GIT_DIRECTORY)
    return head and (common or all(own))


def _path_in(path: bytes) -> bytes | None:
    """What a pointer of git says: all but the line ends at its end, blanks and lines included.

    Raises Refused for one that says something but not now.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        check_is_gone(path, error)
        return None
    try:
        text = os.read(fd, 4096).rstrip(b"\r\n")
        return None if b"\0" in text else text  # no path has one
    except OSError:
        return None
    finally:
        os.close(fd)
