"""A bounded listing of a tree, by the rules of fs/walk.

Breadth first; names sorted by their bytes within a directory.  Files and directories are listed;
links and special files are not, except that with ``follow_directory_symlinks`` a link to a
directory is listed and entered as one.  A directory reached twice is listed each time and entered
once.  Hidden directories can be listed without being entered.

What counts, learned from exec-server 0.166.0: every name that is examined uses up one entry, also a
pipe or a link that is then left out, but not a link that leads nowhere; a directory counts when it
is entered, the root included; an unreadable directory, even the root, is an item of ``errors``.
Hitting a bound makes the result ``truncated``: entries and size end the walk, directories and depth
only stop it from going deeper (depth without ``truncated``).
"""

from __future__ import annotations

import os
import stat
from collections import deque
from typing import NamedTuple

from handrail.filesystem import own_processes
from handrail.filesystem.errors import NativePath, native, os_errors, os_text, refusal

MAX_DEPTH = 64
MAX_DIRECTORIES = 10_000
MAX_ENTRIES = 50_000
#: The answer's bound: each entry counts its URI and 64 bytes around it (measured: 14,217 entries of
#: 231 bytes, 10,618 of 331, 44,202 of 31 on average).
RESPONSE_BUDGET = 4 * 1024 * 1024

_AROUND = 64
_SCHEME = len("file://")
#: Bytes that are not encoded in a path URI; all others become three.
_PLAIN = bytes(b for b in range(0x21, 0x7F) if b not in b'"#%<>?\\`{}')

_OMITTED, _FILE, _DIRECTORY = range(3)


class WalkOptions(NamedTuple):
    """Bounds and options; depth 0 lists the children of the root alone."""

    max_depth: int
    max_directories: int
    max_entries: int
    follow_directory_symlinks: bool = False
    prune_hidden_directories: bool = False


class WalkEntry(NamedTuple):
    """One name.  ``parent`` ends with a slash and is one object for all of a directory, so
    that a caller that encodes it need do so once."""

    parent: bytes
    name: bytes
    is_directory: bool

    @property
    def path(self) -> bytes:
        return self.parent + self.name


class WalkProblem(NamedTuple):
    """A path that could not be read, and why."""

    path: bytes
    message: str


class WalkResult:
    """What was found, what could not be read, and whether there is more."""

    def __init__(
        self,
        entries: list[WalkEntry] | None = None,
        errors: list[WalkProblem] | None = None,
        truncated: bool = False,
    ) -> None:
        self.entries = [] if entries is None else entries
        self.errors = [] if errors is None else errors
        self.truncated = truncated


def walk(path: NativePath, options: WalkOptions) -> WalkResult:
    """List what is below ``path``; nothing when it is no directory."""
    root = native(path)
    _check_limits(root, options)
    with os_errors(root):
        status = os.stat(root)
        is_link = stat.S_ISLNK(os.lstat(root).st_mode)
    if not stat.S_ISDIR(status.st_mode) or (is_link and not options.follow_directory_symlinks):
        return WalkResult()
    return _Walk(options, (status.st_dev, status.st_ino)).run(root)


def _check_limits(root: bytes, options: WalkOptions) -> None:
    if options.max_directories <= 0 or options.max_entries <= 0:
        raise refusal("filesystem walk limits must be greater than zero", root)
    if (
        not 0 <= options.max_depth <= MAX_DEPTH
        or options.max_directories > MAX_DIRECTORIES
        or options.max_entries > MAX_ENTRIES
    ):
        raise refusal(
            f"filesystem walk limits exceed maximums: depth={MAX_DEPTH}, "
            f"directories={MAX_DIRECTORIES}, entries={MAX_ENTRIES}",
            root,
        )


class _Walk:
    """The state of one walk."""

    def __init__(self, options: WalkOptions, root: tuple[int, int]) -> None:
        self._options = options
        self._result = WalkResult()
        self._queue: deque[tuple[bytes, int]] = deque()
        self._entered = 1
        self._seen = {root}
        self._room = options.max_entries
        self._budget = RESPONSE_BUDGET

    def run(self, root: bytes) -> WalkResult:
        self._queue.append((root, 0))
        while self._queue:
            directory, depth = self._queue.popleft()
            try:
                # One more than fits, so that the cut is noticed.
                names = _list(directory, self._room + 1, self._options.follow_directory_symlinks)
            except OSError as error:
                more = self._note(directory, error)
            else:
                more = self._take(directory, depth, names)
            if not more:
                self._result.truncated = True
                break
        return self._result

    def _take(self, directory: bytes, depth: int, names: list[tuple[bytes, int]]) -> bool:
        """Put the names of one directory into the result; False when a bound ends the walk."""
        prefix = directory if directory == b"/" else directory + b"/"
        fitting = self._fitting(prefix, names)
        listed = [
            WalkEntry(prefix, name, kind == _DIRECTORY)
            for name, kind in names[:fitting]
            if kind != _OMITTED
        ]
        self._result.entries += listed
        if depth < self._options.max_depth:
            prune = self._options.prune_hidden_directories
            for _, name, is_directory in listed:
                if not is_directory or (prune and name.startswith(b".")):
                    continue
                if not self._enter(prefix + name, depth):
                    return False
        return fitting == len(names)

    def _fitting(self, prefix: bytes, names: list[tuple[bytes, int]]) -> int:
        """How many of the names the bounds allow; they are counted as used."""
        around = _SCHEME + _encoded_length(prefix) + _AROUND
        shown = [name for name, kind in names if kind != _OMITTED]
        cost = len(shown) * around + _encoded_length(b"".join(shown))
        if len(names) <= self._room and cost <= self._budget:
            self._room -= len(names)
            self._budget -= cost
            return len(names)
        # Some bound is hit in this directory: find the name at which.
        for index, (name, kind) in enumerate(names):
            cost = 0 if kind == _OMITTED else around + _encoded_length(name)
            if self._room == 0 or cost > self._budget:
                return index
            self._room -= 1
            self._budget -= cost
        return len(names)

    def _enter(self, path: bytes, depth: int) -> bool:
        """Queue a directory; False when a bound ends the walk."""
        if self._options.follow_directory_symlinks:
            # Only links can lead to a directory twice, so the others save the syscall.
            try:
                status = os.stat(path)
            except OSError as error:
                return self._note(path, error)
            identity = status.st_dev, status.st_ino
            if identity in self._seen:
                return True
        if self._entered >= self._options.max_directories:
            self._result.truncated = True
            return True
        if self._options.follow_directory_symlinks:
            self._seen.add(identity)
        self._entered += 1
        self._queue.append((path, depth + 1))
        return True

    def _note(self, path: bytes, error: OSError) -> bool:
        message = os_text(error.errno or 0)
        self._budget -= _SCHEME + _encoded_length(path) + len(message) + _AROUND
        if self._budget < 0:
            return False
        self._result.errors.append(WalkProblem(path, message))
        return True


def _list(directory: bytes, keep: int, follow: bool) -> list[tuple[bytes, int]]:
    """The first ``keep`` names of a directory, sorted, with their kinds.

    A directory can hold millions of names and the answer never more than ``keep``: names that
    cannot be among the first are dropped on the way.
    """
    found: list[tuple[bytes, int]] = []
    most = 2 * keep + 1024
    own_processes.refuse_directory(directory)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                kind = _DIRECTORY
            elif entry.is_file(follow_symlinks=False):
                kind = _FILE
            elif entry.is_symlink():
                try:
                    leads_to_directory = stat.S_ISDIR(entry.stat().st_mode)
                except OSError:
                    continue
                kind = _DIRECTORY if follow and leads_to_directory else _OMITTED
            else:
                kind = _OMITTED
            found.append((entry.name, kind))
            if len(found) >= most:
                found.sort()
                del found[keep:]
    found.sort()
    return found


def _encoded_length(path: bytes) -> int:
    return len(path) + 2 * len(path.translate(None, _PLAIN))
