"""The directory of a server's workspaces: what lies where, and how it appears and goes.

    DIR/lock             held by the server that uses DIR
    DIR/stamp            touched by the supervisor of ``--supervised``
    DIR/incarnation      the life of the processes that the records speak of
    DIR/owners           owners without a connection, and since when
    DIR/records          the workspaces, a line for each change
    DIR/w/NAME/root      the directory of a workspace; a workspace never moves, so that what
    DIR/w/NAME/tmp       ``prepare`` built may name its own path
    DIR/ready/DIGEST/NAME   marks w/NAME as clean, for a warm pool; removed when it is taken
    DIR/pools/DIGEST     what a warm pool was asked to be
    DIR/templates/DIGEST a template, unpacked
    DIR/trash/           what is being removed

What is in ``w`` without a record and without a mark was spare, being made, or being removed, when a
server ended: it is removed by the next.  All of this is blocking and is called in threads, except
at the start of a server, for a rename or an append, and where directories are made singly
(``spare_directories.py``).
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections.abc import Callable

from handrail import private_files, private_places
from handrail.errors import UsageError
from handrail.sandbox import temp_dirs

_FOLDERS = ("w", "ready", "pools", "templates", "trash")
#: How long the next server waits for the lock of the previous one.
_LOCK_SECONDS = 10.0
#: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL of linux/fs.h, where a long has 64 bits.
_GET_FLAGS, _SET_FLAGS, _TOP_OF_HIERARCHIES = 0x80086601, 0x40086602, 0x20000


class Directories:
    """The paths below one directory, which this server alone uses."""

    def __init__(self, path: str) -> None:
        """Make and lock it; raises UsageError."""
        self.path = os.path.realpath(path)
        os.close(private_files.open_directory(self.path))
        self._lock = _locked(self.path)
        private_places.remember(self.path)
        private_places.open_workspaces(os.path.join(self.path, "w"))
        for name in _FOLDERS:
            os.close(private_files.open_directory(self.of(name)))
        _spread(self.of("w"))

    def close(self) -> None:
        """Let the next server have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def of(self, *names: str) -> str:
        return "/".join((self.path, *names))

    def root(self, name: str) -> str:
        return f"{self.path}/w/{name}/root"

    def temporary(self, name: str) -> str:
        return f"{self.path}/w/{name}/tmp"  # noqa: S108 (below our own)

    def free(self) -> int:
        """Bytes that are free on its disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    # --- workspaces ------------------------------------------------------------------------

    def make(self, fill: Callable[[str], None] | None = None, shell: str | None = None) -> str:
        """Make a directory for a workspace, filled by ``fill``; returns its name.

        ``shell``: an empty directory to become ``w/NAME``, instead of a new one.
        """
        name = os.urandom(8).hex()
        if shell is None:
            os.mkdir(self.of("w", name), 0o700)
        else:
            os.rename(shell, self.of("w", name))
        try:
            os.mkdir(self.root(name), 0o700)
            os.mkdir(self.temporary(name), 0o700)
            if fill is not None:
                fill(self.root(name))
        except BaseException:
            self.discard(name)
            raise
        return name

    def put_aside(self, name: str) -> str | None:
        """Take a workspace away at once, to be removed later; None if it is gone."""
        aside = self.of("trash", f"{name}-{os.urandom(4).hex()}")
        try:
            os.rename(self.of("w", name), aside)
        except FileNotFoundError:
            return None
        return aside

    def discard(self, name: str) -> None:
        """Remove a workspace's directory."""
        aside = self.put_aside(name)
        if aside is not None:
            temp_dirs.clear(os.fsencode(aside))

    def tidy(self, known: set[str]) -> list[str]:
        """Put aside what a server left half-made; returns what is to be removed.

        Called before anything is made: what is there and unknown is no work under way.
        """
        for name in os.listdir(self.of("w")):
            if name not in known:
                self.put_aside(name)
        for name in os.listdir(self.of("templates")):
            if name.startswith("."):
                with contextlib.suppress(OSError):
                    os.rename(self.of("templates", name), self.of("trash", name[1:]))
        return [self.of("trash", name) for name in os.listdir(self.of("trash"))]

    # --- small files -------------------------------------------------------------------------

    def write(self, data: bytes, *names: str) -> None:
        """Write a file whole: a reader finds the previous content or this one."""
        folder, name = os.path.split(self.of(*names))
        directory = os.open(folder, private_files.DIRECTORY)
        stage = f".{name}-{os.urandom(4).hex()}"
        try:
            private_files.replace_file(directory, name, data, stage)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(stage, dir_fd=directory)
            raise
        finally:
            os.close(directory)

    def read(self, *names: str) -> bytes | None:
        """The content of a small file; None if there is none."""
        try:
            with open(self.of(*names), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def remove(self, *names: str) -> bool:
        """Remove a file; whether it was there."""
        try:
            os.unlink(self.of(*names))
        except FileNotFoundError:
            return False
        return True

    def names(self, *folder: str) -> list[str]:
        """The names in a folder without half-written ones, which are removed."""
        found = []
        try:
            listed = os.listdir(self.of(*folder))
        except FileNotFoundError:
            return []
        for name in listed:
            if name.startswith("."):
                with contextlib.suppress(OSError):
                    os.unlink(self.of(*folder, name))
            else:
                found.append(name)
        return found


def _spread(path: str) -> None:
    """Tell the file system that what is in a directory is not related (``chattr +T``).

    ext4 puts a directory beside its parent.  Without a journal it also looks past every inode
    there that was deleted within the last minutes, for each ``mkdir``: 130 µs after some thousand
    workspaces, and 20 µs when these are spread over the disk.
    """
    import fcntl

    directory = os.open(path, private_files.DIRECTORY)
    flags = array("l", [0])
    try:
        fcntl.ioctl(directory, _GET_FLAGS, flags)
        if not flags[0] & _TOP_OF_HIERARCHIES:
            flags[0] |= _TOP_OF_HIERARCHIES
            fcntl.ioctl(directory, _SET_FLAGS, flags)
    except OSError:
        pass  # a hint, which other file systems do not know
    finally:
        os.close(directory)


def _locked(path: str) -> int:
    import fcntl

    directory = private_files.open_directory(path)
    try:
        lock = private_files.open_file(directory, "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UsageError(f"{path}/lock cannot be used ({error.strerror}); remove it") from None
    finally:
        os.close(directory)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise UsageError(
                    f"another server uses the workspaces in {path}; stop it, or name another"
                    " directory"
                ) from None
            time.sleep(0.05)
