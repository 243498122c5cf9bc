"""A private ``/tmp`` and ``/var/tmp`` for the sandboxes of one owner, instead of the host's.

Programs of the host look for sockets and files with known names there, so files that a command
makes must not appear there.  The owner (a workspace, a session, one command line) has a directory
of its own (``temp_dirs.py``); a part of it is mounted over each of the two.  All sandboxes of the
owner that share the same paths of the host show the same part: a file that one command writes is
there for the next.

What a profile names below ``/tmp`` is the host's, mounted at its own path.  The directories on the
way are made in the owner's directory, and every sandbox that can write there has them mounted
read-only: none can rename or replace them, and lead a later one elsewhere.  That is why a sandbox
that shares other paths has another part.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail import private_files
from handrail.sandbox.plan.safe_open import Opened, Refused, shown
from handrail.sandbox.profile import SYSTEM_TMP, Access, normal, parents, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from handrail.sandbox.profile import Profile

#: What is covered, by the name of its part.
PLACES = {place: place[1:].replace(b"/", b"-") for place in SYSTEM_TMP}
#: Variables that name a directory for temporary files.
VARIABLES = (b"TMPDIR", b"TMP", b"TEMP")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Room for the paths in the name of a part; a name has 255 bytes at most.
_LONGEST_NAME = 200


class Part:
    """What one sandbox has instead of one of the host's directories.  Close it when done."""

    def __init__(self, place: bytes, path: bytes, shares: tuple[bytes, ...]) -> None:
        self.place = place
        #: Its path on the host.
        self.path = path
        #: The topmost host paths in it.
        self.shares = shares
        #: The part itself and the directories on the way to shared paths, by path in the sandbox.
        self.opened: dict[bytes, Opened] = {}

    def close(self) -> None:
        while self.opened:
            os.close(self.opened.popitem()[1].fd)


def places() -> dict[bytes, bytes]:
    """The real paths that are covered here, with the names of their parts."""
    found: dict[bytes, bytes] = {}
    for place, name in PLACES.items():
        if os.path.isdir(place):
            found.setdefault(os.path.realpath(place), name)
    return found


def shares(place: bytes, named: Iterable[bytes]) -> tuple[bytes, ...]:
    """The topmost of the paths below a place, sorted."""
    below = {path for path in named if path != place and within(path, place)}
    return tuple(sorted(path for path in below if not below.intersection(parents(path))))


def part_name(name: bytes, shared: tuple[bytes, ...]) -> bytes:
    """The name of the part that shows these host paths, which it spells out if it can."""
    if not shared:
        return name
    text = b"\0".join(shared).replace(b"%", b"%25").replace(b"/", b"%2F").replace(b"\0", b"%00")
    if len(text) <= _LONGEST_NAME:
        return b"%b-%b" % (name, text)
    from _blake2 import blake2b  # hashlib would load OpenSSL: 3 ms

    return b"%b-%b" % (name, blake2b(text, digest_size=16).hexdigest().encode())


def named_paths(profile: Profile) -> list[bytes]:
    """The host paths that a profile names."""
    return [rule.path for rule in profile.rules if rule.access is not Access.DENY]


def open_part(
    directory: bytes, place: bytes, name: bytes, shared: Mapping[bytes, bool | None]
) -> Part:
    """Open a part and make its missing mount points; raises Refused.

    ``shared`` says of each path whether it is a directory of the host; None: it is missing there,
    and the part has an empty directory in its place.
    """
    paths = tuple(sorted(shared))
    part = Part(place, os.path.join(directory, name), paths)
    try:
        owner = os.open(directory, _DIRECTORY)
        try:
            status = os.fstat(owner)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise Refused(
                    f"{shown(directory)} is not a directory of this user alone, so it cannot be"
                    " the /tmp of a sandbox; use another, of mode 700"
                )
            part.opened[place] = _opened(_directory(owner, name, 0o1700), place)
        finally:
            os.close(owner)
        for path in paths:
            _make_way(part, path, shared[path])
    except OSError as error:
        part.close()
        raise Refused(
            f"{shown(directory)} cannot be the /tmp of a sandbox ({error.strerror}); is the"
            " workspace closed?"
        ) from None
    except BaseException:
        part.close()
        raise
    return part


def _make_way(part: Part, path: bytes, is_directory: bool | None) -> None:
    """Make a mount point for one path, and the directories that lead there."""
    for step in (p for p in reversed(parents(path)) if within(p, part.place)):
        _step(part, step)
    if is_directory is None:
        _step(part, path)
        return
    above, name = part.opened[os.path.dirname(path)].fd, os.path.basename(path)
    if is_directory:
        os.close(_directory(above, name, 0o700))
        return
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o600, dir_fd=above))
    except FileExistsError:
        if not stat.S_ISREG(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.EEXIST, f"{shown(path)} was a directory before") from None


def _step(part: Part, path: bytes) -> None:
    if path not in part.opened:
        above = part.opened[os.path.dirname(path)].fd
        part.opened[path] = _opened(_directory(above, os.path.basename(path), 0o700), path)


def _directory(above: int, name: bytes, mode: int) -> int:
    """Open a directory in another, made if missing; no link is followed."""
    try:
        os.close(private_files.make_directory(name, above, mode))
    except FileExistsError:
        pass
    return os.open(name, _DIRECTORY, dir_fd=above)


def _opened(fd: int, path: bytes) -> Opened:
    status = os.fstat(fd)
    return Opened(fd, path, status.st_mode, {}, (status.st_dev, status.st_ino))


class Shown:
    """Which paths of a sandbox are not the host's."""

    def __init__(self) -> None:
        #: By place: the directory that is shown there, and the paths of the host in it.
        self.parts: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, part: Part) -> None:
        self.parts[part.place] = (part.path, part.shares)

    @property
    def mounts(self) -> set[bytes]:
        """The places, and the paths of the host below them: each is a separate mount."""
        return {path for place, (_, shared) in self.parts.items() for path in (place, *shared)}

    def host_path(self, path: bytes) -> bytes:
        """The host path of what a sandbox shows at a real path."""
        for place, (inner, shared) in self.parts.items():
            if within(path, place):
                if any(within(path, share) for share in shared):
                    return path
                return inner + path[len(place) :]
        return path


def environment(env: Mapping[bytes, bytes], writable: Iterable[bytes]) -> Mapping[bytes, bytes]:
    """Set variables for temporary directories to ones the command can use.

    ``writable`` are the host's directories in which it may write.
    """
    roots = tuple(writable)
    changed = {
        name: b"/tmp"
        for name in VARIABLES
        if name in env and not any(within(os.path.realpath(env[name]), root) for root in roots)
    }
    return {**env, **changed} if changed else env


def covers(profile: Profile, path: bytes) -> bool:
    """Whether the sandbox has a version of its own of a path."""
    return profile.private_tmp is not None and _place(normal(path), _shared(profile)) is not None


def _shared(profile: Profile) -> list[bytes]:
    return [path for path in named_paths(profile) if any(within(path, p) for p in PLACES)]


def _place(path: bytes, shared: list[bytes]) -> bytes | None:
    """The place whose private version has a path; None: the path is that of the host."""
    place = next((one for one in PLACES if within(path, one)), None)
    return None if place is None or any(within(path, one) for one in shared) else place


def check_program(profile: Profile, program: bytes, env: Mapping[bytes, bytes], cwd: bytes) -> None:
    """Raise SpawnFailed for a program that its sandbox could not start either."""
    from handrail.process import find_program
    from handrail.start_errors import SpawnFailed

    outside = outside_environment(profile, program, env, cwd)
    if outside is None:
        return
    try:
        find_program.check(program, outside, cwd)
    except SpawnFailed as failed:
        try:
            find_program.check(program, env, cwd)
        except SpawnFailed:
            raise failed from None
        raise SpawnFailed(
            f"{failed}; the one of PATH is below /tmp, and a sandboxed command has a /tmp of its"
            " own: name its directory in read= of a Profile, or with --writable",
            errno=failed.errno,
            path=failed.path,
        ) from None


def outside_environment(
    profile: Profile, program: bytes, env: Mapping[bytes, bytes], cwd: bytes
) -> Mapping[bytes, bytes] | None:
    """The variables by which a program can be looked for on the host, before it is started.

    Directories of PATH that the sandbox does not show are left out.  None: the program or the
    directory it starts in may exist in the sandbox alone.
    """
    if profile.private_tmp is None:
        return env
    shared = _shared(profile)
    whole = normal(os.path.join(cwd, program)) if b"/" in program else normal(cwd)
    if _place(normal(cwd), shared) or _place(whole, shared):
        return None
    if b"/" in program or b"PATH" not in env:
        return env
    entries = env[b"PATH"].split(b":")
    kept = []
    for entry in entries:
        path = normal(os.path.join(cwd, entry))
        place = _place(path, shared)
        if place is None:
            kept.append(entry)
        elif _may_have(profile.private_tmp, path[len(place) :], program):
            return None
    if len(kept) == len(entries):
        return env
    return {**env, b"PATH": b":".join(kept) or b"/dev/null"}  # an empty PATH would be the directory


def _may_have(directory: bytes, below: bytes, program: bytes) -> bool:
    """Whether a part has a program in a directory, or a link on the way, which leads anywhere."""
    try:
        parts = os.listdir(directory)
    except OSError:
        return True
    for part in parts:
        path = os.path.join(directory, part)
        for name in (*filter(None, below.split(b"/")), program):
            path = os.path.join(path, name)
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                break
            if not stat.S_ISDIR(mode):
                return True
        else:
            return True
    return False
