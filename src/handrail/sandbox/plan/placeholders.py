"""Protected names that must not be created while a sandbox runs.

A mount needs a mount point, so a protected name that is missing has to exist on the host while a
sandbox covers it.  Each one we make is at once recorded in a private directory, one file per lease.
Beside it lies an empty file that stays locked while any process of the sandbox lives: its first
process holds a copy of the fd (bwrap's ``--sync-fd``).  So a later run can tell what a killed
server has left behind, and removes it, by identity and only if empty.

Processes that share the directory may see different file systems under one path, such as a /tmp of
their own.  So several placeholders can have one path, and a lease is named for the mount namespace
it was made in: a process of another one forgets it only if it finds what was made.

The sandbox never holds the record, and cannot reach the empty file: the first process's directory
in ``/proc`` is covered.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import stat
import time

from handrail import private_files, private_places
from handrail.sandbox.light_dataclass import Frozen
from handrail.sandbox.plan.safe_open import (
    Crossed,
    Missing,
    Refused,
    alias_of_the_system,
    open_path,
)
from handrail.sandbox.profile import OPEN_NAMES, PROTECTED_NAMES, known_names
from handrail.start_errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from handrail.sandbox.plan.safe_open import Above

Identity = tuple[int, int]  # device, inode
Made = tuple[bytes, Identity]  # a path, and what was made there

#: The record of what was made, and the lock that says whether it is still needed.
_MADE, _HELD = ".made", ".held"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
#: How long a record of another mount namespace is kept: that one may be gone with its files.
_KEPT_SECONDS = 7 * 86_400


class Placeholder(Frozen):
    """A missing path that is to be covered, by an empty directory or by an empty file."""

    path: bytes
    directory: bool


class Stale(Exception):
    """A path exists that was missing when the plan was made: make another plan."""


class PlaceholderLease:
    """Placeholders held for one sandbox or for several at once."""

    __slots__ = ("_registry", "fd", "made", "name", "users")

    def __init__(
        self, registry: PlaceholderRegistry, name: str, fd: int, made: dict[Placeholder, Identity]
    ) -> None:
        self._registry = registry
        self.name = name
        self.fd = fd  # passed to --sync-fd
        self.made = made
        self.users = 1

    def release(self) -> None:
        """End the use by one sandbox, of which no process is left."""
        self.users -= 1
        if self.users == 0:
            self._registry.give_up(self)

    def leave(self) -> None:
        """Let go while processes of the sandbox live on: a later sweep removes the placeholders."""
        self.users -= 1
        if self.users == 0:
            self._registry.leave(self)

    def fill(self, masks: Sequence[Placeholder]) -> None:
        """Make what is missing, for a lease that was prepared.  Raises Stale, or Refused."""
        self._registry.fill(self, masks)

    def disown(self) -> None:
        """Close the fd in a child after a fork, which must not keep the parent's lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class PlaceholderRegistry:
    """The placeholders of this user, in one directory that all our processes share."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory or _usual_directory()
        self._fd, self._lock = _open(self.directory)
        #: The leases of this process by name, and those that the next sandbox may share.
        self._active: dict[str, PlaceholderLease] = {}
        self._shared: dict[tuple[Placeholder, ...], PlaceholderLease] = {}
        #: The file's lock excludes other processes, this one other threads.
        self._threads = _thread.RLock()
        self._count = 0
        self._here = _mount_namespace()
        self._prefix = f"{self._here}-{os.getpid()}-{os.urandom(4).hex()}"

    def acquire(self, masks: Sequence[Placeholder]) -> PlaceholderLease:
        """Make what is missing and hold it.  Raises Stale, or Refused."""
        key = tuple(masks)
        lease = self._shared.get(key)
        if lease is not None and _all_there(lease.made):
            lease.users += 1
            return lease
        with self._locked():
            lease = self._prepared()
            try:
                self._fill(lease, key)
            except BaseException:
                self._drop(lease)
                os.close(lease.fd)
                raise
        self._shared[key] = lease
        return lease

    def prepare(self) -> PlaceholderLease:
        """A lease of nothing yet, for a sandbox that is set up before they are needed."""
        with self._locked():
            return self._prepared()

    def _prepared(self) -> PlaceholderLease:
        self._count += 1
        name = f"{self._prefix}-{self._count}"
        held = private_files.open_file(self._fd, name + _HELD, _NEW)
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
        except BaseException:
            self._forget(name)
            os.close(held)
            raise
        lease = self._active[name] = PlaceholderLease(self, name, held, {})
        return lease

    def fill(self, lease: PlaceholderLease, masks: Sequence[Placeholder]) -> None:
        """Make what is missing and record it under a lease.  Raises Stale, or Refused."""
        with self._locked():
            self._fill(lease, masks)

    def _fill(self, lease: PlaceholderLease, masks: Sequence[Placeholder]) -> None:
        others = _Others(self._living)
        made: dict[Placeholder, Identity] = {}
        try:
            written = private_files.open_file(self._fd, lease.name + _MADE, _NEW)
            try:
                with _Directories() as directories:
                    for mask in masks:
                        made[mask] = _make(directories, mask, others)
                        # Each at once: what is not recorded stays for ever after a kill.
                        os.write(written, _record(mask, made[mask]))
            finally:
                os.close(written)
        except BaseException:
            _remove(_pairs(made) - others.found)
            self._forget(lease.name)
            raise
        lease.made = made

    def _forget(self, name: str) -> None:
        for kind in (_MADE, _HELD):
            try:
                os.unlink(name + kind, dir_fd=self._fd)
            except FileNotFoundError:
                pass

    def give_up(self, lease: PlaceholderLease) -> None:
        """Remove a lease's placeholders, except those that another lease holds too."""
        self._drop(lease)
        with self._locked():
            os.close(lease.fd)
            self._forget(lease.name)
            _remove(_pairs(lease.made) - self._living())

    def leave(self, lease: PlaceholderLease) -> None:
        """Let go of a lease that its sandbox goes on holding."""
        self._drop(lease)
        os.close(lease.fd)

    def _drop(self, lease: PlaceholderLease) -> None:
        self._active.pop(lease.name, None)
        for key, held in list(self._shared.items()):
            if held is lease:
                del self._shared[key]

    def is_mask(self, path: bytes, identity: Identity) -> bool:
        """Whether what is at ``path`` exists only because a sandbox covers it."""
        wanted = (path, identity)
        if any(wanted in _pairs(lease.made) for lease in list(self._active.values())):
            return True
        with self._locked():
            return wanted in self._living()

    def close(self) -> None:
        """Close the directory."""
        os.close(self._lock)
        os.close(self._fd)

    def sweep(self) -> None:
        """Remove the placeholders of sandboxes that were killed together with their server."""
        with self._locked():
            self._living()

    def _living(self) -> set[Made]:
        """The placeholders of all live leases; those of dead ones are removed."""
        living: set[Made] = set()
        dead: list[tuple[str, set[Made]]] = []
        # Our own are known: with many sandboxes at once most are.
        ours = {name: lease.made for name, lease in list(self._active.items())}
        # By the locks, which are made first and go last: none of the records is left out.
        for file in os.listdir(self._fd):
            name = file.removesuffix(_HELD)
            if name == file:
                continue
            if name in ours:
                living |= _pairs(ours[name])
                continue
            try:
                records = set(_records(_read(self._fd, name + _MADE)))
                locked = _locked_by_others(self._fd, file)
            except OSError:
                continue  # no file of ours
            if locked:
                living |= records
            else:
                dead.append((name, records))
        for name, records in dead:
            if _remove(records - living) or self._made_here(name):
                self._forget(name)
        return living

    def _made_here(self, name: str) -> bool:
        """Whether a dead lease is of our mount namespace, or too old for another one to come."""
        if name.startswith(f"{self._here}-"):
            return True
        age = time.time() - os.stat(name + _HELD, dir_fd=self._fd).st_mtime
        return age > _KEPT_SECONDS

    def _locked(self) -> _Locked:
        return _Locked(self._lock, self._threads)


def _usual_directory() -> str:
    """The directory of records, one for all programs of this user.

    They may share a workspace and have several state homes.
    """
    try:
        return os.path.join(private_places.user_directory(), "covers")
    except private_files.NotOurs as error:
        raise SandboxUnavailable(str(error)) from None


def _open(path: str) -> tuple[int, int]:
    """Descriptors of the directory and of its lock."""
    try:
        directory = private_files.open_directory(path)
    except private_files.NotOurs as error:
        raise SandboxUnavailable(str(error)) from None
    try:
        return directory, private_files.open_file(directory, "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        os.close(directory)
        raise SandboxUnavailable(
            f"{path}/lock cannot be used ({error.strerror}); remove it and try again"
        ) from None


class _Locked:
    """The lock of the whole registry, held for a block."""

    def __init__(self, fd: int, threads: _thread.RLock) -> None:
        self._fd = fd
        self._threads = threads

    def __enter__(self) -> None:
        self._threads.acquire()
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._threads.release()


def _mount_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/mnt").st_ino
    except OSError:
        return 0  # no /proc: as one namespace with all others that have none


def _pairs(made: Mapping[Placeholder, Identity]) -> set[Made]:
    return {(mask.path, identity) for mask, identity in made.items()}


class _Directories:
    """Parent directories of placeholders, each opened once: most share one."""

    def __init__(self) -> None:
        self._open: dict[bytes, int] = {}
        self._above: Above = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (*self._open.values(), *(fd for fd, _ in self._above.values())):
            os.close(fd)

    def of(self, path: bytes) -> tuple[int, bytes]:
        """An fd of a path's parent directory, and its name there; raises as ``open_path``."""
        parent, name = os.path.split(path)
        fd = self._open.get(parent)
        if fd is None:
            fd = self._open[parent] = open_path(parent, alias_of_the_system, self._above).fd
        return fd, name


class _Others:
    """The placeholders of all live leases, once it was asked for them: few starts need them."""

    def __init__(self, look: Callable[[], set[Made]]) -> None:
        self._look: Callable[[], set[Made]] | None = look
        self.found: set[Made] = set()

    def look(self) -> bool:
        """Find them, and remove those of dead leases; False when that was done before."""
        look, self._look = self._look, None
        if look is not None:
            self.found = look()
        return look is not None


def _make(directories: _Directories, mask: Placeholder, others: _Others) -> Identity:
    """Make one mount point in its open parent directory; share one of a live lease."""
    try:
        parent, name = directories.of(mask.path)
    except (Missing, Crossed):
        raise Stale from None
    try:
        if mask.directory:
            # Programs of the host can use what they trust in the meantime, so it has their mode.
            mode = 0o755 if name in PROTECTED_NAMES else 0o1777 if name in OPEN_NAMES else 0o700
            fd = private_files.make_directory(name, parent, mode)
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            fd = os.open(name, flags, 0o644, dir_fd=parent)
    except FileExistsError:
        if others.look():  # it may be gone now
            return _make(directories, mask, others)
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError:
            raise Stale from None
        identity = (status.st_dev, status.st_ino)
        if (mask.path, identity) not in others.found:
            raise Stale from None
        return identity
    except OSError as error:
        raise Refused(
            f"{os.fsdecode(mask.path)} is missing and cannot be covered ({error.strerror});"
            " make it, or leave its directory out of what may be written"
        ) from None
    status = os.fstat(fd)
    os.close(fd)
    return status.st_dev, status.st_ino


def _remove(made: Iterable[Made]) -> bool:
    """Remove what we made, unless it was replaced or is not empty; whether all of it was found."""
    found = True
    with _Directories() as directories:
        for path, identity in made:
            try:
                found &= _remove_one(*directories.of(path), identity, path)
            except (Missing, Crossed, Refused):
                found = False  # unreachable
            except OSError:
                found = False  # gone, or another program uses it now: it stays
    return found


def _remove_one(parent: int, name: bytes, identity: Identity, path: bytes) -> bool:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if identity != (status.st_dev, status.st_ino):
        return False
    if stat.S_ISDIR(status.st_mode):
        ours = name in PROTECTED_NAMES or name in known_names(os.geteuid())
        if ours or private_places.is_name(path):  # we never make a directory of another name
            os.rmdir(name, dir_fd=parent)
    elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
        os.unlink(name, dir_fd=parent)
    return True


def _all_there(made: dict[Placeholder, Identity]) -> bool:
    for mask, identity in made.items():
        try:
            status = os.stat(mask.path, follow_symlinks=False)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) != identity:
            return False
    return True


def _record(mask: Placeholder, identity: Identity) -> bytes:
    return b"%d %d %b\0" % (*identity, mask.path)


def _records(text: bytes) -> Iterable[Made]:
    for line in text.split(b"\0"):
        device, _, rest = line.partition(b" ")
        inode, _, path = rest.partition(b" ")
        if device.isdigit() and inode.isdigit() and path.startswith(b"/"):
            yield path, (int(device), int(inode))


def _read(directory: int, name: str) -> bytes:
    try:
        fd = private_files.open_file(directory, name, os.O_RDONLY)
    except FileNotFoundError:
        return b""  # its maker was killed before it made anything
    with open(fd, "rb") as file:
        return file.read()


def _locked_by_others(directory: int, name: str) -> bool:
    fd = private_files.open_file(directory, name, os.O_RDONLY)
    return private_files.is_locked(fd, exclusively=False)
