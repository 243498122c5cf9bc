"""The empty directories and files that placeholders are: how one is made, and how it is removed.

Each is reached by its opened parent directory, without following a link that a command could have
made.  One is removed only if it is what was made (device, inode and time) and is empty.  The inode
alone is not enough: a file system may give it to the next directory.  The time is that of the last
change of its content, for taking the mark off changes the other one; and an old record has none.

A kill can come before the inode of a new one is recorded.  Until then each has a mark that other
programs do not make: a sticky bit where no other user may write.  What has the mark where a program
that was killed was about to make one is what that program made.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail import private_files, private_places
from handrail.sandbox.plan.safe_open import (
    Crossed,
    Missing,
    Refused,
    alias_of_the_system,
    is_searchable,
    open_path,
)
from handrail.sandbox.profile import OPEN_NAMES, PROTECTED_NAMES, known_names
from handrail.sandbox.slow_close import close_later

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Self

    from handrail.sandbox.plan.safe_open import Above

Identity = tuple[int, int]  # device, inode
Made = tuple[bytes, Identity, int]  # a path, what was made there, and when
Lines = dict[bytes, int]  # what is recorded, and when it was made

#: The identity of what is recorded before it is made.  No file has it.
EXPECTED: Identity = (0, 0)
#: The time of what is recorded without one.
UNKNOWN = -1

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Limits of directories that are open at a time, and of parents that stay open.
_MOST_OPEN, _MOST_KEPT = 64, 4


class Directories:
    """Parent directories of placeholders, opened once for all names in them.

    The first few are kept open for the next block: most commands have the same one.  Not thread
    safe; a block is not entered twice.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[int, Identity]] = {}
        self._open: dict[bytes, int] = {}
        self._above: Above = {}
        self._added = 0

    def __enter__(self) -> Self:
        self._added = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._close_open()
        while self._above:
            os.close(self._above.popitem()[1][0])

    def _close_open(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def close(self) -> None:
        """Close those that were kept."""
        while self._kept:
            os.close(self._kept.popitem()[1][0])

    def of(self, path: bytes) -> tuple[int, bytes]:
        """An fd of a path's parent directory, and its name there; raises as ``open_path``."""
        parent, _, name = path.rpartition(b"/")
        fd = self._open.get(parent)
        if fd is None:
            if len(self._open) >= _MOST_OPEN:
                self._close_open()
            fd = self._open[parent] = self._opened(parent)
        return fd, name

    def _opened(self, path: bytes) -> int:
        fd = self._again(path)
        if fd < 0:
            fd = self._below(path)
        if fd >= 0:
            return fd
        opened = open_path(path or b"/", alias_of_the_system, self._above)
        if self._added < _MOST_KEPT:
            self._added += 1
            if len(self._kept) >= _MOST_KEPT:
                self._let_go(next(iter(self._kept)))
            self._kept[path] = os.dup(opened.fd), opened.identity
        return opened.fd

    def _again(self, path: bytes) -> int:
        """A copy of the fd of one that was kept, if its path still leads to it; else -1.

        No other directory can have its number while it is open, so no link leads elsewhere.
        """
        kept = self._kept.get(path)
        if kept is None:
            return -1
        try:
            status = os.stat(path)
            if kept[1] == (status.st_dev, status.st_ino):
                return os.dup(kept[0])
        except OSError:
            pass  # gone, or out of reach
        self._let_go(path)
        return -1

    def _let_go(self, path: bytes) -> None:
        os.close(self._kept.pop(path)[0])

    def _below(self, path: bytes) -> int:
        """Open a directory in one that is open already, as its neighbours were; -1: walk there."""
        above, _, name = path.rpartition(b"/")
        known = self._above.get(above)
        if known is None or not name or not is_searchable(known[1]):
            return -1
        try:
            return os.open(name, _DIRECTORY, dir_fd=known[0])
        except OSError:
            return -1  # a link, or missing


class NewPoints:
    """Mount points for one record: open and marked until it has their inodes.

    Raises OSError when the record cannot be written.
    """

    def __init__(self, record: int, paths: Iterable[bytes]) -> None:
        self._record = record
        self._lines: list[tuple[bytes, int]] = []
        #: An fd of each that is marked, and the mode that it is to have.
        self._marked: list[tuple[int, int]] = []
        self.made: list[Made] = []
        # First: what is not recorded stays for ever after a kill.
        write_lines(record, [(line_of(path, EXPECTED), UNKNOWN) for path in paths])

    def make(
        self, parent: int, path: bytes, name: bytes, *, directory: bool
    ) -> tuple[Identity, int]:
        """Make one in its open parent directory; raises OSError, such as FileExistsError."""
        if len(self._marked) >= _MOST_OPEN:
            self.settle()
        mode = _mode(name, directory)
        marked = mode & ~0o022 | stat.S_ISVTX
        if directory:
            os.mkdir(name, marked, dir_fd=parent)
            fd = _open_new(name, parent)
        else:
            fd = os.open(name, _NEW_FILE, marked, dir_fd=parent)
        self._marked.append((fd, -1))
        status = os.fstat(fd)
        self.made.append((path, (status.st_dev, status.st_ino), status.st_mtime_ns))
        if _is_marked(status):  # else exchanged, or the file system keeps no such bit
            # A directory has its mode whatever the umask is.
            now = stat.S_IMODE(status.st_mode)
            kept = (now | mode if directory else now) & (~stat.S_ISVTX | mode)
            self._marked[-1] = fd, kept
        return self.made[-1][1:]

    def record(self, line: bytes, time: int) -> None:
        """Have one recorded, new or not."""
        self._lines.append((line, time))

    def settle(self) -> None:
        """Record what is new, and take its marks off; raises OSError."""
        write_lines(self._record, self._lines)
        self._lines.clear()
        for fd, mode in self._marked:
            if mode >= 0:
                _change_mode(fd, mode)
        self.close()

    def close(self) -> None:
        """Close what is open."""
        while self._marked:
            os.close(self._marked.pop()[0])


def _open_new(name: bytes, parent: int) -> int:
    try:
        return os.open(name, private_files.DIRECTORY, dir_fd=parent)
    except PermissionError:  # by the umask
        return os.open(name, _DIRECTORY, dir_fd=parent)


def _change_mode(fd: int, mode: int) -> None:
    try:
        os.fchmod(fd, mode)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod wants more than O_PATH


def _mode(name: bytes, directory: bool) -> int:
    if not directory:
        return 0o644
    # Programs of the host can use what they trust in the meantime, so it has their mode.
    return 0o755 if name in PROTECTED_NAMES else 0o1777 if name in OPEN_NAMES else 0o700


def _is_marked(status: os.stat_result) -> bool:
    marked = status.st_mode & (stat.S_ISVTX | 0o022) == stat.S_ISVTX
    return marked and status.st_uid == os.geteuid()


def remove_points(
    directories: Directories, made: Iterable[Made], held: Collection[bytes] = ()
) -> bool:
    """Remove what we made, unless it was replaced or is not empty; whether all of it was found.

    What is ``EXPECTED`` is removed if it has the mark and is not held, as a line.
    """
    found = True
    opened: list[int] = []
    with directories:
        for one in made:
            try:
                parent, name = directories.of(one[0])
                found &= _remove(parent, name, one, held, opened)
            except (Missing, Crossed, Refused):
                found = False  # unreachable
            except OSError:
                found = False  # gone, or another program uses it now: it stays
    close_later(opened)
    return found


def _remove(
    parent: int, name: bytes, made: Made, held: Collection[bytes], opened: list[int]
) -> bool:
    path, identity, time = made
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    found = status.st_dev, status.st_ino
    if identity == EXPECTED and _is_marked(status) and line_of(path, found) not in held:
        identity = found
    if identity != found or time not in (status.st_mtime_ns, UNKNOWN):
        return False
    if stat.S_ISDIR(status.st_mode):
        ours = name in PROTECTED_NAMES or name in known_names(os.geteuid())
        if ours or private_places.is_name(path):  # we never make a directory of another name
            if len(opened) < _MOST_OPEN:
                try:
                    # Its blocks go when it is closed: a file system may wait for the disk.
                    opened.append(os.open(name, _DIRECTORY, dir_fd=parent))
                except OSError:
                    pass  # no fd free
            os.rmdir(name, dir_fd=parent)
    elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
        os.unlink(name, dir_fd=parent)
    return True


def line_of(path: bytes, identity: Identity) -> bytes:
    """How one is recorded."""
    return b"%d %d %b" % (*identity, path)


def read_lines(lines: Lines, held: Collection[bytes]) -> Iterable[Made]:
    """What was recorded and is not held; what was expected, too, if it may have been made."""
    made: set[bytes] = set()
    for line in sorted(lines, reverse=True):  # the expected ones last
        device, _, rest = line.partition(b" ")
        inode, _, path = rest.partition(b" ")
        if not (device.isdigit() and inode.isdigit() and path.startswith(b"/")):
            continue
        identity = int(device), int(inode)
        if identity == EXPECTED and path in made:
            continue
        made.add(path)
        if line not in held or identity == EXPECTED:
            yield path, identity, lines[line]


def write_lines(record: int, lines: Iterable[tuple[bytes, int]]) -> None:
    """Append lines to an open record; raises OSError.

    A time has a line of its own, which programs that know of none skip.
    """
    timed = b"%d@%b\0%b\0"
    data = b"".join(
        [line + b"\0" if time < 0 else timed % (time, line, line) for line, time in lines]
    )
    while data:
        data = data[os.write(record, data) :]


def read_record(directory: int, name: str) -> Lines:
    """The lines of a record in the private directory of them; raises OSError."""
    try:
        fd = private_files.open_file(directory, name, os.O_RDONLY)
    except FileNotFoundError:
        return {}  # its maker was killed before it made anything
    try:
        text = b""
        while part := os.read(fd, 65_536):
            text += part
    finally:
        os.close(fd)
    lines: Lines = {}
    for line in text.split(b"\0"):
        time, timed, rest = line.partition(b"@")  # a path may have one, too
        if timed and time.isdigit():
            lines[rest] = int(time)
        else:
            lines.setdefault(line, UNKNOWN)
    return lines
