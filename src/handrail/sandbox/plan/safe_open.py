"""Open paths safely against links and replaced directories.

Every directory a plan uses is opened once, component by component, and kept as an fd: what was
checked is what gets mounted, whatever happens to its name meanwhile.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat

from handrail.sandbox.light_dataclass import Frozen
from handrail.start_errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: An fd of each directory, and what it was when it was opened.
    Above = dict[bytes, tuple[int, os.stat_result]]

#: What may be there all the same: no descriptor or no memory is left, or a lease is held on it.
_NOT_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_MOST_LINKS = 40
#: Limit of paths kept open at a time; of others the identity is known.
_MOST_OPEN = 400
#: Limit of directories on the way to them that are kept open.
_MOST_ABOVE = 40
_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(SandboxError):
    """The profile cannot be enforced on this file system as it is; nothing was started."""


class Exchanged(Refused):
    """A path is no longer what it was when the plan was begun."""

    def __init__(self, path: bytes) -> None:
        super().__init__(
            f"{shown(path)} was exchanged while the sandbox was made; start the command again"
        )


class Missing(Exception):
    """There is nothing at ``path``, the first component that does not exist."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path


class Unreachable(Missing):
    """A directory on the way cannot be searched with our ids alone, so not by the command either.

    Root searches every directory, but not in a sandbox, without its capabilities.
    """


class Crossed(Exception):
    """The path leads over an untrusted symbolic link."""

    def __init__(self, link: bytes) -> None:
        super().__init__(link)
        self.link = link


class Opened(Frozen):
    """An existing path: its fd (owned by the caller), its real path, the links on the way."""

    fd: int
    path: bytes
    mode: int
    links: dict[bytes, bytes]
    identity: tuple[int, int]  # device, inode

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Places:
    """All that was opened for one plan.  Close it when done."""

    def __init__(self) -> None:
        self._opened: dict[bytes, Opened] = {}
        #: The directories on the way: most paths of a plan have some in common.
        self._above: Above = {}
        #: The symbolic links that were followed.
        self.links: dict[bytes, bytes] = {}

    def __getitem__(self, path: bytes) -> Opened:
        return self._opened[path]

    def open(self, path: bytes, trusted: Callable[[bytes, os.stat_result], bool]) -> Opened:
        """Open a path, once; raises as ``open_path`` does."""
        known = self._opened.get(path)
        if known is not None:
            return known
        parent, name = posixpath.split(path)
        above = self._opened.get(parent)
        opened = None if above is None or above.fd < 0 else _below(above, name, path)
        if opened is None:
            opened = open_path(path, trusted, self._above)
        self.links.update(opened.links)
        known = self._opened.get(opened.path)
        if known is not None:
            os.close(opened.fd)
            return known
        if len(self._opened) >= _MOST_OPEN:
            os.close(opened.fd)
            opened = opened._replace(fd=-1)
        self._opened[opened.path] = opened
        return opened

    def take(self, opened: Opened) -> int:
        """An fd of it, from now on owned by the caller."""
        if opened.fd >= 0:
            return os.dup(opened.fd)
        try:
            again = open_path(opened.path, lambda link, status: False)
        except (Missing, Crossed):
            raise Exchanged(opened.path) from None
        if again.identity != opened.identity:
            os.close(again.fd)
            raise Exchanged(opened.path)
        return again.fd

    def close(self) -> None:
        for opened in self._opened.values():
            if opened.fd >= 0:
                os.close(opened.fd)
        self._opened.clear()
        for fd, _ in self._above.values():
            os.close(fd)
        self._above.clear()


def open_path(
    path: bytes,
    trusted: Callable[[bytes, os.stat_result], bool],
    above: Above | None = None,
) -> Opened:
    """Open a normal absolute path.  ``trusted`` is called for each symbolic link on the way.

    ``above``: directories that were opened in this way before, and are not opened again; those on
    the way are added, and are the caller's to close.  Raises Missing, Crossed, or Refused for what
    can neither be opened nor is missing.
    """
    links: dict[bytes, bytes] = {}
    fd, status, crossed = _step(path, links, trusted, above)
    while crossed is not None:
        if len(links) > _MOST_LINKS:
            raise Refused(f"{shown(path)} runs in a circle of symbolic links; give its real path")
        path = crossed
        fd, status, crossed = _step(path, links, trusted, above)
    return Opened(fd, path, status.st_mode, links, (status.st_dev, status.st_ino))


def _step(
    path: bytes,
    links: dict[bytes, bytes],
    trusted: Callable[[bytes, os.stat_result], bool],
    above: Above | None,
) -> tuple[int, os.stat_result, bytes | None]:
    """Walk to the end, or to a link: then the third value is where to start again."""
    at, fd, status = _nearest(path, above)
    names = [name for name in path[len(at) :].split(b"/") if name]
    for index, name in enumerate(names):
        before = fd
        here = posixpath.join(at, name)
        try:
            if not is_searchable(status):
                raise Unreachable(here)
            fd = _open_name(name, before, here)
        finally:
            _leave(before, at, status, above)
        status = os.fstat(fd)
        if stat.S_ISLNK(status.st_mode):
            try:
                if not trusted(here, status):
                    raise Crossed(here)
                target = os.readlink(b"", dir_fd=fd)
            finally:
                os.close(fd)
            links[here] = target
            rest = posixpath.join(at, target, *names[index + 1 :])
            # `..` behind a link means the parent of its target, so it cannot be resolved as text.
            return -1, status, _resolved(rest)
        at = here
    return fd, status, None


def _nearest(path: bytes, above: Above | None) -> tuple[bytes, int, os.stat_result]:
    """The innermost directory above a path that is open, or else the root."""
    if above:
        at = path
        while at != b"/":
            at = posixpath.dirname(at)
            known = above.get(at)
            if known is not None:
                return at, *known
    fd = os.open(b"/", _FLAGS)
    return b"/", fd, os.fstat(fd)


def _leave(fd: int, at: bytes, status: os.stat_result, above: Above | None) -> None:
    """Keep a directory on the way open for the next path, or close it."""
    if above is not None and (at in above or len(above) < _MOST_ABOVE):
        above[at] = fd, status
    else:
        os.close(fd)


def _below(above: Opened, name: bytes, path: bytes) -> Opened | None:
    """Like `_step`, for a name in an open directory: continues from what was checked.

    None for a symbolic link, which is followed from the root.
    """
    if not is_searchable(os.fstat(above.fd)):
        raise Unreachable(path)
    fd = _open_name(name, above.fd, path)
    status = os.fstat(fd)
    if stat.S_ISLNK(status.st_mode):
        os.close(fd)
        return None
    return Opened(fd, path, status.st_mode, {}, (status.st_dev, status.st_ino))


def _open_name(name: bytes, directory: int, path: bytes) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise Missing(path) from None
        if error.errno == errno.EACCES:
            raise Unreachable(path) from None
        raise Refused(
            f"{shown(path)} cannot be opened ({error.strerror}); leave it out of the profile"
        ) from None


def check_is_gone(path: bytes, error: OSError) -> None:
    """Raise Refused for an error that says nothing about what is there."""
    if error.errno in _NOT_NOW:
        raise Refused(
            f"{shown(path)} cannot be read now ({error.strerror}), so what is in it cannot be"
            " protected; start the command again when that has ended"
        ) from None


def is_searchable(directory: os.stat_result) -> bool:
    """Whether our ids alone let us search a directory."""
    if directory.st_mode & 0o001 or os.geteuid() != 0:
        return True  # for all users but root the kernel decides, in a moment
    if directory.st_uid == 0:
        return bool(directory.st_mode & 0o100)
    groups = {os.getegid(), *os.getgroups()}
    return bool(directory.st_mode & 0o010) and directory.st_gid in groups


def _resolved(path: bytes) -> bytes:
    if b".." in path.split(b"/"):
        return os.path.realpath(path)
    return b"/" + posixpath.normpath(path).lstrip(b"/")


def alias_of_the_system(link: bytes, status: os.stat_result) -> bool:
    """Whether a link is in the root directory, or only root could have made it."""
    if link.count(b"/") == 1:
        return True
    return os.geteuid() != 0 and status.st_uid == 0 and not _writable(posixpath.dirname(link))


def _writable(directory: bytes) -> bool:
    return os.access(directory, os.W_OK, effective_ids=True)


def can_be_opened_up(directory: bytes) -> bool:
    """Whether a command with our ids can create names in a directory, or chmod it so.

    Raises Exchanged.
    """
    if os.access(directory, os.W_OK):
        return True
    try:
        return os.stat(directory).st_uid == os.geteuid()
    except OSError:
        raise Exchanged(directory) from None  # it was there a moment ago


def shown(path: bytes) -> str:
    """A path for people."""
    return os.fsdecode(path)
