"""Names of stages: files that are about to replace another one, and need a name for it.

New directories of a tree that is copied have such a stage too.

A kill between naming a stage and renaming it to the target leaves it behind.  Two things remove
such a file:

* A stage is named after its target, so the next write of that target finds it.
* A server first writes the name into a journal in its state directory, and the next server on that
  directory checks the entries.

A stage is locked (``flock``) while its writer lives.  Only a regular file of our own that can be
locked is ever removed, or such a directory with its files; one that holds a directory stays.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import os
import re
import stat
import threading

from handrail import private_files

_NAME = re.compile(rb"\.handrail-[0-9a-f]{8}(?:[0-9a-f]{8})?")
JOURNAL = "stages"


def for_target(name: bytes) -> bytes:
    """The name of the stage of a target."""
    return b".handrail-%08x" % binascii.crc32(name)


def fresh() -> bytes:
    """A unique name, for a target that two writers replace at once."""
    return b".handrail-" + os.urandom(8).hex().encode()


def lock(fd: int) -> bool:
    """Mark a stage as in use until its fd is closed; False where that is not possible."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # without locks none of them counts as abandoned
    return True


def remove_abandoned(directory: int, name: bytes) -> None:
    """Remove a stage without a live writer; leave every other file alone."""
    if not _NAME.fullmatch(name):
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError:
        return
    try:
        status = os.fstat(fd)
        is_directory = stat.S_ISDIR(status.st_mode)
        if not (is_directory or stat.S_ISREG(status.st_mode)) or status.st_uid != os.geteuid():
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not os.path.samestat(there, status):
            return
        if is_directory:
            _remove_files(fd)
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
    except OSError:
        pass  # its writer lives, or it is gone, or the directory is read-only
    finally:
        os.close(fd)


def _remove_files(directory: int) -> None:
    """Empty a directory, unless it holds another one: that is none of our stages."""
    with os.scandir(directory) as found:
        inside = [(one.name, one.is_dir(follow_symlinks=False)) for one in found]
    if not any(is_directory for _, is_directory in inside):
        for name, _ in inside:
            os.unlink(name, dir_fd=directory)


class StageJournal:
    """The names of this server's current stages, where the next server finds them.

    The file is opened for the first stage: a server that writes no file holds no descriptor of it.
    """

    def __init__(self, state: int) -> None:
        """``state``: the fd of the server's state directory; open until ``close``."""
        self.state = state
        self._fd = -1
        self._lock = threading.Lock()
        self._under_way = 0

    def sweep(self) -> None:
        """Remove what a previous server has left; call it before the first ``note``."""
        file = self._open()
        try:
            self._remove_left(os.pread(file, os.fstat(file).st_size, 0))
            os.ftruncate(file, 0)
        finally:
            os.close(file)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        return private_files.open_file(self.state, JOURNAL, flags)

    @staticmethod
    def _remove_left(left: bytes) -> None:
        for path in filter(None, left.split(b"\0")):
            parent, name = os.path.split(path)
            with contextlib.suppress(OSError):
                directory = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    remove_abandoned(directory, name)
                finally:
                    os.close(directory)

    def note(self, directory: int, name: bytes) -> None:
        """Record that a stage is about to get this name."""
        path = os.readlink(b"/proc/self/fd/%d" % directory) + b"/" + name + b"\0"
        with self._lock:
            self._under_way += 1
            with contextlib.suppress(OSError):  # a full disk must not prevent the write itself
                if self._fd < 0 <= self.state:
                    self._fd = self._open()
                os.write(self._fd, path)

    def done(self) -> None:
        """Record that the name is another file's now, or gone."""
        with self._lock:
            self._under_way -= 1
            if not self._under_way and self._fd >= 0:
                os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Close the file, and use the state directory no more: its fd may soon be another's."""
        with self._lock:
            fd, self._fd, self.state = self._fd, -1, -1
        if fd >= 0:
            os.close(fd)


class _NoJournal:
    """For programs without a state directory."""

    def note(self, directory: int, name: bytes) -> None: ...

    def done(self) -> None: ...


#: The journal of this process.
journal: StageJournal | _NoJournal = _NoJournal()


def sweep(state: int) -> None:
    """Remove what the last server has left in this state directory, and the journal itself.

    Raises OSError.
    """
    StageJournal(state).sweep()
    os.unlink(JOURNAL, dir_fd=state)


def keep_journal(state: int) -> None:
    """Remove what the previous server left in this state directory; keep a journal there."""
    global journal
    try:
        own = StageJournal(state)
        own.sweep()
    except OSError as error:
        import logging  # a file helper never gets here, and starts without it

        logging.getLogger(__name__).warning(
            "the journal of files being written cannot be kept (%s): a kill in the middle of a"
            " write can leave a file .handrail-* beside its target",
            error.strerror,
        )
        return
    journal = own


def end_journal(state: int) -> None:
    """Close the journal in this state directory, whose fd is closed next."""
    global journal
    if isinstance(journal, StageJournal) and journal.state == state:
        journal.close()
        journal = _NoJournal()
