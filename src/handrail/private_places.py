"""Every private path of handrail, how it is made and opened, and the list that sandboxes cover.

A *place* is a directory or a file that handrail outside trusts: state home, runtime directory,
server directories, records, logs, locks, sockets, secrets.  A directory is made component by
component from fds, for its owner alone whatever the umask says; a file in it is opened by the
directory's fd, and a link, a pipe or a file of another user is refused.

``listed`` names all places a version of ours uses or has used, whether they exist or not: a
command that could make one of them would be believed by the next handrail outside.  A program that
was given a place of its own (a socket, a state directory, a token file) names it with ``add``.
A state directory outlives its server, so it is also written down in the state home (``remember``),
and the sandboxes of other programs of ours cover it for as long as it is there.

Standard library only, and little of it: ``handrail sandbox`` imports this each time.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail.errors import UsageError

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
#: Size of a secret in bytes; it is written as hexadecimal digits.
_SECRET_SIZE = 32
_SECRET = "secret"  # noqa: S105 (a file's name)

#: Where places that were given to programs of ours are written down, in the state home.
_REMEMBERED = "places"

#: Places that this program was given; True for directories.
_added: dict[bytes, bool] = {}
#: Those of them that commands may read, and not write.
_readable: set[bytes] = set()


class NotOurs(UsageError):
    """A path cannot be used as a private place; nothing was written there."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


# --- paths ------------------------------------------------------------------------------------


def state_home() -> str:
    """The directory for state that outlives this process, made if missing; raises NotOurs."""
    place, directory = open_state_home()
    os.close(directory)
    return place


def open_state_home() -> tuple[str, int]:
    """Like `state_home`, with an fd of it."""
    reason = ""
    for place in state_homes():
        try:
            directory = open_directory(place)
        except NotOurs as error:
            reason = reason or str(error)
            continue
        # Not writable on a read-only file system, for example: then the next candidate may be.
        if os.access(f"/proc/self/fd/{directory}", os.W_OK | os.X_OK, effective_ids=True):
            return place, directory
        os.close(directory)
        reason = reason or f"{place} cannot be written"
    raise NotOurs(
        f"no private directory for handrail's state: {reason}; set XDG_STATE_HOME to a directory"
        " that belongs to you alone"
    )


def runtime_directory() -> str:
    """The directory of this user's own server, made if it is missing; raises NotOurs.

    In ``XDG_RUNTIME_DIR`` if that is a directory of ours alone, else in the state home: a shared
    directory such as ``/tmp`` is never used, for commands can write there.
    """
    given = _absolute(os.environ.get("XDG_RUNTIME_DIR"))
    if given is not None and _is_private(given):
        place = os.path.join(given, "handrail")
    else:
        place = os.path.join(state_home(), "runtime")
    os.close(open_directory(place))
    return place


def open_lock(name: str) -> tuple[str, int]:
    """Path and fd of a lock file in the runtime directory; raises UsageError."""
    folder = runtime_directory()
    directory = open_directory(folder)
    try:
        return f"{folder}/{name}", open_file(directory, name, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UsageError(
            f"{folder}/{name} cannot be used ({error.strerror}); remove it and try again"
        ) from None
    finally:
        os.close(directory)


def state_homes() -> list[str]:
    """Where the state home may be; the first that can be used is."""
    given = _absolute(os.environ.get("XDG_STATE_HOME"))
    first = default_state_home() if given is None else os.path.join(given, "handrail")
    return [place for place in (first, _without_home()) if place is not None]


def default_state_home() -> str | None:
    """The state home unless ``XDG_STATE_HOME`` is set."""
    home = _absolute(os.path.expanduser("~"))
    return None if home is None else os.path.join(home, ".local/state/handrail")


def config_home() -> str:
    """The user's directory for configuration of ours; nothing is made."""
    given = _absolute(os.environ.get("XDG_CONFIG_HOME"))
    return default_config_home() if given is None else os.path.join(given, "handrail")


def default_config_home() -> str:
    """The directory for configuration unless ``XDG_CONFIG_HOME`` is set."""
    return os.path.join(_absolute(os.path.expanduser("~")) or "/", ".config/handrail")


def _without_home() -> str:
    return f"/var/tmp/handrail-{os.geteuid()}"  # noqa: S108 (refused unless it is ours alone)


def _absolute(path: str | None) -> str | None:
    """A path of the environment if absolute and without ``..``, ambiguous behind links."""
    return os.path.normpath(path) if path and path.startswith("/") else None


def _is_private(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )


# --- what sandboxes cover ---------------------------------------------------------------------


def add(path: str | bytes, *, directory: bool = False, readable: bool = False) -> None:
    """Let every sandbox of this program cover a place that it was given."""
    place = os.path.abspath(os.fsencode(path))
    if not contains(place):
        _added[place] = directory
        if readable:
            _readable.add(place)


def remember(path: str) -> None:
    """Have the sandboxes of all handrail programs cover a directory as long as it exists."""
    place = os.path.abspath(os.fsencode(path))
    if any(place.startswith(ours + b"/") for ours in listed()):
        return
    _added[place] = True
    from _blake2 import blake2b  # only for a server that was given one

    try:
        directory = open_directory(os.path.join(state_home(), _REMEMBERED))
        try:
            name = blake2b(place, digest_size=16).hexdigest()
            file = open_file(directory, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                os.write(file, os.path.realpath(place))
            finally:
                os.close(file)
        finally:
            os.close(directory)
    except (NotOurs, OSError):
        pass  # nothing can be kept: this program covers it all the same


def _remembered() -> list[bytes]:
    """The directories that were given to handrail programs, and exist."""
    found = []
    for home in state_homes():
        try:
            directory = os.open(os.path.join(home, _REMEMBERED), _DIRECTORY)
        except OSError:
            continue
        try:
            places = (_read_place(directory, name) for name in os.listdir(directory))
            found += [place for place in places if place]
        finally:
            os.close(directory)
    return found


def _read_place(directory: int, name: str) -> bytes:
    """What is recorded under a name; empty, and forgotten, if it does not exist any more."""
    try:
        file = open_file(directory, name, os.O_RDONLY)
        try:
            place = os.read(file, 4096)
        finally:
            os.close(file)
        if place.startswith(b"/") and os.path.isdir(place):
            return place
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass  # no file of ours, or another program was quicker
    return b""


def contains(path: str | bytes) -> bool:
    """Whether a path is a private place, or lies in one."""
    place = os.path.abspath(os.fsencode(path))
    return any(place == ours or place.startswith(ours + b"/") for ours in listed())


def revision() -> tuple[int, ...]:
    """A number that changes with the list: by ``add``, or by ``remember`` of any program."""
    changes = []
    for home in state_homes():
        try:
            changes.append(os.stat(os.path.join(home, _REMEMBERED)).st_mtime_ns)
        except OSError:
            changes.append(0)
    return len(_added), *changes


def is_directory(path: bytes) -> bool:
    """Whether a missing place would be a directory."""
    return _added.get(path, True)


def is_readable(path: bytes) -> bool:
    """Whether commands may read a place: rules are no secret, and a handrail inside needs them."""
    return path in _readable or os.fsdecode(path) in (default_config_home(), config_home())


def is_name(path: bytes) -> bool:
    """Whether a directory has the name of a place of any handrail program."""
    name = os.path.basename(path)
    return name == b"handrail" or name.startswith(b"handrail-") or path in _added


def is_retired(path: bytes) -> bool:
    """Whether only earlier versions have used a place; it is covered and never used."""
    return path == _retired()


def _retired() -> bytes:
    return b"/tmp/handrail-%d" % os.geteuid()


def listed() -> dict[bytes, bool]:
    """All places to cover, existing or not; True for those that are directories."""
    # Rules in the configuration decide what the next session may do.
    candidates = [default_state_home(), _without_home(), default_config_home(), config_home()]
    for variable in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        given = _absolute(os.environ.get(variable))
        candidates.append(None if given is None else os.path.join(given, "handrail"))
    # Also for a program that was started without the variables of the user's session.
    session = f"/run/user/{os.geteuid()}"
    candidates.append(f"{session}/handrail" if os.path.isdir(session) else None)
    places = {os.path.normpath(os.fsencode(place)): True for place in candidates if place}
    places[_retired()] = True  # a program of an earlier version may run
    places.update(dict.fromkeys(_remembered(), True))
    places.update(_added)
    return places


# --- making and opening -----------------------------------------------------------------------


def open_directory(path: str) -> int:
    """Open a directory that belongs to this user alone; made if missing, with its parents.

    Raises NotOurs.  A directory of ours that others may enter is narrowed to 0700.
    """
    path = os.path.abspath(path)
    try:
        above = _open_above(os.path.dirname(path))
        try:
            directory = _enter(above, os.path.basename(path))
        finally:
            os.close(above)
    except OSError as error:
        raise _unusable(path, _reason(error)) from None
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid():
            raise _unusable(path, f"it belongs to user {status.st_uid}, not to us")
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(directory, 0o700)
    except OSError as error:
        os.close(directory)
        raise _unusable(path, _reason(error)) from None
    except BaseException:
        os.close(directory)
        raise
    return directory


def _unusable(path: str, reason: str) -> NotOurs:
    return NotOurs(
        f"cannot use the directory {path}: {reason}; choose another, or remove what is in the way",
        reason,
    )


def _open_above(path: str) -> int:
    """Open the parent directory of a place; missing ones are made.

    A link on the way is followed if it is root's or ours: homes may be links.  The last component
    of a place never is one.
    """
    here = os.open("/", _STEP)
    names = [name for name in reversed(path.split("/")) if name]
    links = 0
    try:
        while names:
            name = names.pop()
            try:
                step = os.open(name, _STEP, dir_fd=here)
            except FileNotFoundError:
                step = _make(here, name)
            status = os.fstat(step)
            if not stat.S_ISLNK(status.st_mode):
                os.close(here)
                here = step
                continue
            try:
                links += 1
                if status.st_uid not in (0, os.geteuid()) or links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink("", dir_fd=step)
            finally:
                os.close(step)
            names += [part for part in reversed(target.split("/")) if part]
            if target.startswith("/"):
                os.close(here)
                here = -1
                here = os.open("/", _STEP)
        return here
    except BaseException:
        if here >= 0:
            os.close(here)
        raise


def make_above(path: bytes) -> None:
    """Make the parent directories of a place; raises OSError."""
    os.close(_open_above(os.fsdecode(os.path.dirname(path))))


def _enter(above: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=above)
    except FileNotFoundError:
        os.close(_make(above, name))
        return os.open(name, _DIRECTORY, dir_fd=above)


def _make(above: int, name: str) -> int:
    """Make a directory for this user alone, in one of this user's or the system's."""
    owner = os.fstat(above).st_uid
    if owner not in (0, os.geteuid()):
        raise OSError(errno.EACCES, f"it would be made in a directory of user {owner}")
    try:
        return make_directory(name, above)
    except FileExistsError:  # another process of ours was quicker; it is looked at all the same
        return os.open(name, _STEP | os.O_DIRECTORY, dir_fd=above)


def make_directory(name: str | bytes, above: int | None = None, mode: int = 0o700) -> int:
    """Make a directory that has this mode whatever the umask is; an ``O_PATH`` descriptor of it.

    Raises OSError, FileExistsError among them.
    """
    os.mkdir(name, mode, dir_fd=above)
    made = os.open(name, _STEP | os.O_DIRECTORY, dir_fd=above)
    try:
        status = os.fstat(made)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & mode != mode:
            # The umask took something.  By /proc: fchmod wants more than O_PATH.
            os.chmod(f"/proc/self/fd/{made}", mode)
    except BaseException:
        os.close(made)
        raise
    return made


def open_file(directory: int, name: str, flags: int) -> int:
    """Open a private file in a private directory, 0600; raises OSError.

    ``flags`` as for ``os.open``.  What is no regular file of ours (a link, a pipe, a second name of
    a file elsewhere) is refused with EPERM or ELOOP, and never waited for.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    # Not truncated before it was checked.
    opened = os.open(name, flags & ~os.O_TRUNC, 0o600, dir_fd=directory)
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EPERM, "it is not a regular file", name)
        if status.st_uid != os.geteuid() or status.st_nlink > 1:
            raise OSError(errno.EPERM, "it is not a file of ours alone", name)
        if stat.S_IMODE(status.st_mode) & 0o677 != 0o600:  # also if the umask took the owner's
            os.fchmod(opened, 0o600)
        if flags & os.O_TRUNC:
            os.ftruncate(opened, 0)
        os.set_blocking(opened, True)
    except BaseException:
        os.close(opened)
        raise
    return opened


def socket_address(directory: int, name: str) -> str:
    """A socket's path by its directory's fd: the full path may exceed the kernel's limit."""
    return f"/proc/self/fd/{directory}/{name}"


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "something on the way is a link or no directory"
    return error.strerror or str(error)


# --- secrets ----------------------------------------------------------------------------------


def read_secret(directory: int) -> bytes | None:
    """The secret in a private directory, or None; raises OSError if it is no plain file."""
    try:
        file = open_file(directory, _SECRET, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        text = os.read(file, 4 * _SECRET_SIZE)
    finally:
        os.close(file)
    return text if len(text) == 2 * _SECRET_SIZE else None


def make_secret(directory: int) -> bytes:
    """The secret of a directory that this process has locked, made if missing; raises OSError."""
    known = read_secret(directory)
    if known is not None:
        return known
    secret = os.urandom(_SECRET_SIZE).hex().encode()
    fresh = f"{_SECRET}.new"
    file = open_file(directory, fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(file, secret)
    finally:
        os.close(file)
    os.rename(fresh, _SECRET, src_dir_fd=directory, dst_dir_fd=directory)
    return secret


def secret_in(path: str) -> bytes | None:
    """The secret in the directory at a path, or None if there is none that is ours alone."""
    try:
        directory = os.open(path, _DIRECTORY)
    except OSError:
        return None
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            return None
        return read_secret(directory)
    except OSError:
        return None
    finally:
        os.close(directory)
