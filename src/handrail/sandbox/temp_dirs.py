"""Directories for temporary files of sandboxed commands, removed with their owners.

``/tmp`` itself is closed to the commands, so each owner makes a directory of its own there and
holds a lock on it while it lives.  An unlocked one was left by an owner that was killed, and the
next owner removes it.  A server's have other names and no lock: they are removed with their
session, which outlives the server (``server/session_temp.py``).  How one is shown as /tmp is in
``private_tmp.py``.
"""

from __future__ import annotations

import fcntl
import os

from handrail import private_files
from handrail.sandbox.profile import SYSTEM_TMP

#: How they are named, with eight hex digits after it.
PREFIX = "handrail-tmp-"
#: How the names of all begin, those of servers too.
OURS = b"handrail-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Depth limit of the directories that lead to mount points.
_MOST_LEVELS = 16
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TempDir:
    """One directory that only this user can read."""

    __slots__ = ("_fd", "path")

    def __init__(self, tag: str = "", place: bytes = b"") -> None:
        """Make it; ``tag`` is eight hex digits, random by default.  Raises OSError."""
        base = place or usual_place()
        while True:
            name = PREFIX + (tag or os.urandom(4).hex())
            self.path = os.path.join(base, os.fsencode(name))
            try:
                os.close(private_files.make_directory(self.path))
                self._fd = os.open(self.path, _DIRECTORY)
            except FileExistsError:
                if tag:
                    raise
                continue
            except FileNotFoundError:
                if not os.path.isdir(base):
                    raise
                continue  # another owner's sweep removed it before our lock
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            if _is_still(self.path, self._fd):
                return
            os.close(self._fd)

    def remove(self) -> None:
        """Remove it with its contents."""
        if self._fd >= 0:
            clear(self.path)
            os.close(self._fd)
            self._fd = -1


def usual_place() -> bytes:
    """Where they are made: the real path of TMPDIR, or of a directory of the system.

    As for other programs, a TMPDIR that is missing or closed is none; nor is a relative one, which
    would mean another directory wherever it is asked for.
    """
    for place in (os.environb.get(b"TMPDIR", b""), *SYSTEM_TMP):
        if place.startswith(b"/") and os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
            return os.path.realpath(place)
    return os.path.realpath(SYSTEM_TMP[0])


def sweep() -> None:
    """Remove those of this user that no owner has locked."""
    base = usual_place()
    prefix = os.fsencode(PREFIX)
    try:
        names = os.listdir(base)
    except OSError:
        return
    for name in names:
        tag = name.removeprefix(prefix)
        if tag != name and len(tag) == 8 and not tag.strip(b"0123456789abcdef"):
            _sweep_one(os.path.join(base, name))


def _sweep_one(path: bytes) -> None:
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return  # gone meanwhile, or not ours
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, fd):
                clear(path)
    except OSError:
        pass  # its owner lives, or something in it cannot be removed
    finally:
        os.close(fd)


def _is_still(path: bytes, fd: int) -> bool:
    """Whether the directory we have opened is still at its path."""
    ours = os.fstat(fd)
    try:
        now = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino)


def clear(path: bytes) -> None:
    """Remove a directory with its contents, closed directories included.

    Commands made the contents and others may still write there: no link is followed, and no depth
    is too much.
    """
    try:
        _remove_empty(path, None)  # nearly always it holds only mount points
        return
    except OSError:
        pass  # there is more in it
    from handrail.errors import FilesError
    from handrail.filesystem.removal import remove

    for prepare in (lambda _: None, _open_up):
        prepare(path)
        try:
            remove(path)
            return
        except FilesError:
            continue  # closed, or another user's: it stays


def _remove_empty(path: bytes | str, above: int | None, depth: int = 0) -> None:
    """Remove a directory tree without files; raises OSError for any other."""
    if depth > _MOST_LEVELS:
        raise OSError("mount points are not that deep")
    here = os.open(path, _PLACE & ~os.O_PATH, dir_fd=above)
    try:
        for name in os.listdir(here):
            _remove_empty(name, here, depth + 1)
    finally:
        os.close(here)
    os.rmdir(path, dir_fd=above)


def _open_up(path: bytes) -> None:
    try:
        top = os.open(path, _PLACE)
    except OSError:
        return
    levels = [(top, _opened(top))]
    while levels:
        here, below = levels[-1]
        if not below:
            os.close(here)
            levels.pop()
            continue
        try:
            inner = os.open(below.pop(), _PLACE, dir_fd=here)
        except OSError:
            continue  # gone, replaced, or deeper than our fd limit
        levels.append((inner, _opened(inner)))


def _opened(place: int) -> list[bytes]:
    """chmod a directory by fd and list its subdirectories."""
    name = b"/proc/self/fd/%d" % place
    try:
        os.chmod(name, 0o700)
        with os.scandir(name) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # another user's: it stays
