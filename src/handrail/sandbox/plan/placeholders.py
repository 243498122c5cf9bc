"""Protected names that must not be created while a sandbox runs.

A mount needs a mount point, so a protected name that is missing has to exist on the host while a
sandbox covers it.  Each is recorded in a private directory, one file per lease: before it is made,
and with its inode once it is.  Beside the record an empty file stays locked while any process of
the sandbox lives: its first process holds a copy of the fd (bwrap's ``--sync-fd``).  So a later run
can tell what a killed server has left behind, and removes it, by its inode and time (or the mark
that it has until these are recorded) and only if empty.

Processes that share the directory may see different file systems under one path, such as a /tmp of
their own.  So several placeholders can have one path, and a lease is named for the mount namespace
it was made in: a process of another one forgets it only if it finds what was made.

A lease that shares a placeholder of another program's leases marks these, by an empty file.  So a
lease without a mark removes what it holds without a look at all the others.

The sandbox never holds the record, and cannot reach the empty file: the first process's directory
in ``/proc`` is covered.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import time

from handrail import private_files, private_places
from handrail.sandbox.plan.mount_points import (
    EXPECTED,
    UNKNOWN,
    Directories,
    NewPoints,
    line_of,
    read_lines,
    read_record,
    remove_points,
)
from handrail.sandbox.plan.placeholder_lease import PlaceholderLease, Stale, unused
from handrail.sandbox.plan.safe_open import Crossed, Missing, Refused
from handrail.start_errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from handrail.sandbox.plan.mount_points import Identity, Lines
    from handrail.sandbox.plan.placeholder_lease import Placeholder

    Living = dict[str, Lines]  # what leases hold, by name

#: The record of what was made, the lock that says whether it is still needed, and the mark of a
#: lease that another program shares a placeholder with.
_MADE, _HELD, _SHARED = ".made", ".held", ".shared"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
#: How often it is looked for what killed programs have left: when a lease is prepared, or one that
#: was not is released; and when one is released that was prepared, for its client waits.
_SWEEP_SECONDS, _SWEEP_AT_LAST = 0.25, 60.0
#: How many leases are kept for the next sandboxes.
_MOST_SPARE = 32
#: How long a record of another mount namespace is kept: that one may be gone with its files.
_KEPT_SECONDS = 7 * 86_400


class PlaceholderRegistry:
    """The placeholders of this user, in one directory that all our processes share."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory or _usual_directory()
        self._fd, self._lock = _open(self.directory)
        #: The leases of this process by name, and those that the next sandbox may share.
        self._active: dict[str, PlaceholderLease] = {}
        self._shared: dict[tuple[Placeholder, ...], PlaceholderLease] = {}
        #: Those that hold nothing any more, for the next: their files need not be made again.
        self._spare: dict[str, PlaceholderLease] = {}
        #: The file's lock excludes other processes, this one other threads.
        self._threads = _thread.RLock()
        self._directories = Directories()
        self._count = 0
        self._swept = float("-inf")
        self._here = private_places.mount_namespace()
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
                lease.close()
                self._rest()
                raise
        self._shared[key] = lease
        return lease

    def prepare(self) -> PlaceholderLease:
        """A lease of nothing yet, for a sandbox that is set up before they are needed."""
        with self._locked():
            if self._is_due(_SWEEP_SECONDS):
                self.living()
            lease = self._prepared()
            lease.prepared = True
            return lease

    def _prepared(self) -> PlaceholderLease:
        if self._spare:
            name, lease = self._spare.popitem()
            unused.discard(lease)
            self._active[name] = lease
            return lease
        self._count += 1
        name = f"{self._prefix}-{self._count}"
        held = private_files.open_file(self._fd, name + _HELD, _NEW)
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
            # Now, for a sandbox that waits has time: a new file can take as long as all the rest.
            record = private_files.open_file(self._fd, name + _MADE, _NEW)
        except BaseException:
            self._forget(name)
            os.close(held)
            raise
        lease = self._active[name] = PlaceholderLease(self, name, held, record)
        return lease

    def fill(self, lease: PlaceholderLease, masks: Sequence[Placeholder]) -> None:
        """Make what is missing and record it under a lease.  Raises Stale, or Refused."""
        with self._locked():
            self._fill(lease, masks)

    def _fill(self, lease: PlaceholderLease, masks: Sequence[Placeholder]) -> None:
        new: NewPoints | None = None
        try:
            new = NewPoints(lease.record, [mask.path for mask in masks])
            sharing = _Sharing(self, lease, new)
            with self._directories:
                for mask in masks:
                    identity, made_at = _made_or_shared(self._directories, mask, sharing)
                    line = line_of(mask.path, identity)
                    lease.made[mask] = identity
                    lease.lines[line] = made_at
                    new.record(line, made_at)
                new.settle()
        except BaseException:
            lease.made, lease.lines = {}, {}
            if new is not None:
                new.close()
                # By the mark, too: one may have been made that is not noted here.
                expected = [(mask.path, EXPECTED, UNKNOWN) for mask in masks]
                remove_points(self._directories, [*new.made, *expected])
            self._forget(lease.name)
            os.close(lease.record)
            lease.record = -1
            raise

    def _forget(self, name: str, *, shared: bool = True) -> None:
        for kind in (_MADE, _HELD, _SHARED) if shared else (_MADE, _HELD):
            try:
                os.unlink(name + kind, dir_fd=self._fd)
            except FileNotFoundError:
                pass

    def give_up(self, lease: PlaceholderLease) -> None:
        """Remove a lease's placeholders, except those that another lease holds too."""
        self._drop(lease)
        with self._locked():
            marked = self.is_marked(lease.name)
            try:
                kept = self._held_by_others(lease, marked)
                # Before the record: a kill in between leaves it to the next sweep.
                remove_points(self._directories, read_lines(lease.lines, kept))
                if lease.prepared and not marked:
                    self._keep(lease)
            finally:
                if lease.name not in self._spare:
                    lease.close()
                    self._forget(lease.name, shared=marked)
                self._rest()

    def _keep(self, lease: PlaceholderLease) -> None:
        """Keep the files of a lease that holds nothing any more, for the next one."""
        if lease.record < 0 or len(self._spare) >= _MOST_SPARE:
            return
        if lease.lines:
            os.ftruncate(lease.record, 0)
            os.lseek(lease.record, 0, os.SEEK_SET)
        lease.made, lease.lines = {}, {}
        lease.outside = lease.prepared = False
        lease.users = 1
        self._spare[lease.name] = lease
        unused.add(lease)

    def leave(self, lease: PlaceholderLease) -> None:
        """Let go of a lease that its sandbox goes on holding."""
        self._drop(lease)
        with self._locked():
            for other in self.holders(lease.lines):
                other.outside = True
            lease.close()
            self._rest()

    def _rest(self) -> None:
        """Keep nothing for the next sandbox when none is there, as no directory of a workspace."""
        if not self._active:
            self._directories.close()
            while self._spare:
                name, lease = self._spare.popitem()
                unused.discard(lease)
                lease.close()
                self._forget(name)

    def _drop(self, lease: PlaceholderLease) -> None:
        self._active.pop(lease.name, None)
        for key, held in list(self._shared.items()):
            if held is lease:
                del self._shared[key]

    def _held_by_others(self, lease: PlaceholderLease, marked: bool) -> frozenset[bytes]:
        """What other leases hold of that which this one holds, and perhaps more."""
        due = self._is_due(_SWEEP_AT_LAST if lease.prepared else _SWEEP_SECONDS)
        if lease.outside or marked or due:
            others = list(self.living(lease.name).values())
        else:
            # A lease of another program would have marked this one.
            others = [other.lines for other in self.holders(lease.lines)]
        return frozenset().union(*others)

    def _is_due(self, seconds: float) -> bool:
        return time.monotonic() - self._swept >= seconds

    def holders(self, lines: Collection[bytes]) -> list[PlaceholderLease]:
        """The leases of this registry that hold one of them."""
        leases = list(self._active.values())
        return [one for one in leases if not one.lines.keys().isdisjoint(lines)]

    def is_mask(self, path: bytes, identity: Identity) -> bool:
        """Whether what is at ``path`` exists only because a sandbox covers it."""
        line = line_of(path, identity)
        if any(line in lease.lines for lease in list(self._active.values())):
            return True
        with self._locked():
            return any(line in lines for lines in self.living().values())

    def close(self) -> None:
        """Close the directories."""
        self._directories.close()
        os.close(self._lock)
        os.close(self._fd)

    def sweep(self) -> None:
        """Remove the placeholders of sandboxes that were killed together with their server."""
        with self._locked():
            self.living()

    def is_marked(self, name: str) -> bool:
        """Whether another program shares a placeholder with this lease."""
        try:
            os.stat(name + _SHARED, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def mark(self, name: str) -> None:
        """Let the program of a live lease know that we share a placeholder with it."""
        lease = self._active.get(name)
        if lease is not None:
            lease.outside = True
        elif not self.is_marked(name):
            os.close(private_files.open_file(self._fd, name + _SHARED, _NEW))

    def living(self, without: str = "") -> Living:
        """What all live leases hold, by name, but for one; that of dead ones is removed."""
        self._swept = time.monotonic()
        files = frozenset(os.listdir(self._fd))
        living: Living = {}
        dead: Living = {}
        # By the locks, which are made first and go last: none of the records is left out.
        for file in files:
            if file.endswith(_SHARED) and file.removesuffix(_SHARED) + _HELD not in files:
                self._forget(file.removesuffix(_SHARED))  # swept by a program that knows no marks
            name = file.removesuffix(_HELD)
            if name in (file, without):
                continue
            # With many sandboxes at once most are.
            ours = self._active.get(name) or self._spare.get(name)
            if ours is not None:
                living[name] = ours.lines
                continue
            try:
                lines = read_record(self._fd, name + _MADE)
                locked = _locked_by_others(self._fd, file)
            except OSError:
                continue  # no file of ours
            (living if locked else dead)[name] = lines
        if dead:
            held = frozenset().union(*living.values())
            directories = Directories()  # not ours, which may be in use now
            for name, lines in dead.items():
                made = read_lines(lines, held)
                if remove_points(directories, made, held) or self._made_here(name):
                    self._forget(name)
            directories.close()
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
        return private_places.covers_directory()
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


class _Sharing:
    """What a new lease shares with others, found once a name is there: few starts need it."""

    def __init__(
        self, registry: PlaceholderRegistry, lease: PlaceholderLease, new: NewPoints
    ) -> None:
        self._registry = registry
        self._lease = lease
        self.new = new
        self._near: set[str] = set()
        self._living: Living | None = None

    def nearby(self, line: bytes) -> int | None:
        """When it was made, if a lease of our own registry holds it; it is shared then."""
        found = self._registry.holders(frozenset((line,)))
        for other in found:
            if other.name not in self._near:
                self._near.add(other.name)
                # Whichever of them goes last has to look for those of other programs.
                other.outside = other.outside or self._registry.is_marked(other.name)
                self._lease.outside = self._lease.outside or other.outside
        return max((other.lines[line] for other in found), default=None)

    def look(self) -> bool:
        """Find all live leases, and remove what dead ones hold; False when that was done before."""
        if self._living is not None:
            return False
        self._living = self._registry.living()
        return True

    def anywhere(self, line: bytes) -> int | None:
        """When it was made, if any live lease holds it; all are told, and it is shared then."""
        times = {name: held[line] for name, held in (self._living or {}).items() if line in held}
        for name in times:
            self._registry.mark(name)
        self._lease.outside = self._lease.outside or bool(times)
        return max(times.values(), default=None)


def _made_or_shared(
    directories: Directories, mask: Placeholder, sharing: _Sharing
) -> tuple[Identity, int]:
    """Make one mount point, or share one of a live lease.  Raises Stale, or Refused."""
    try:
        parent, name = directories.of(mask.path)
    except (Missing, Crossed):
        raise Stale from None
    try:
        return sharing.new.make(parent, mask.path, name, directory=mask.directory)
    except FileExistsError:
        pass
    except OSError as error:
        raise Refused(
            f"{os.fsdecode(mask.path)} is missing and cannot be covered ({error.strerror});"
            " make it, or leave its directory out of what may be written"
        ) from None
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        raise Stale from None
    identity = (status.st_dev, status.st_ino)
    line = line_of(mask.path, identity)
    made_at = sharing.nearby(line)
    if made_at is not None:
        return identity, made_at
    if sharing.look():  # it may be gone now
        return _made_or_shared(directories, mask, sharing)
    made_at = sharing.anywhere(line)
    if made_at is None:
        raise Stale
    return identity, made_at


def _all_there(made: dict[Placeholder, Identity]) -> bool:
    for mask, identity in made.items():
        try:
            status = os.stat(mask.path, follow_symlinks=False)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) != identity:
            return False
    return True


def _locked_by_others(directory: int, name: str) -> bool:
    fd = private_files.open_file(directory, name, os.O_RDONLY)
    return private_files.is_locked(fd, exclusively=False)
