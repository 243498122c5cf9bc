"""Every private path of handrail, and the list that sandboxes cover.

A *place* is a directory or a file that handrail outside trusts: state home, runtime directory,
server directories, records, logs, locks, sockets, secrets.  ``private_files`` makes and opens them.

``listed`` names all places a version of ours uses or has used, whether they exist or not: a
command that could make one of them would be believed by the next handrail outside.  A program that
was given a place of its own (a socket, a state directory, a token file) names it with ``add``.
A state directory is for other programs too, so it is also written down in the directory that all
programs of the user share (``remember``), and the sandboxes of all of them cover it until it is
gone or out of use (``forget``).

Standard library only, and little of it: ``handrail sandbox`` imports this each time.
"""

from __future__ import annotations

import os
import stat

from handrail.private_files import DIRECTORY, NotOurs, open_directory, open_file, replace_file
from handrail.start_errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

#: Where places that were given to programs of ours are written down.
_REMEMBERED = "places"

#: The administrator's configuration: rules that are in force whatever the user names.  Not taken
#: from the environment, for a user could move it away.
SYSTEM_CONFIG = "/etc/handrail"

#: Places that this program was given; True for directories.
_added: dict[bytes, bool] = {}
#: Those of them that commands may read, and not write.
_readable: set[bytes] = set()
#: Directories of workspaces, inside a place: ``NAME/root`` and ``NAME/tmp`` in them are commands'.
_workspaces: set[bytes] = set()


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


def user_directory() -> str:
    """The one directory for what all programs of this user share, whatever their environment says.

    Made if it is missing; raises NotOurs.  Another user may have made it before us: then it is in
    the home that the system knows for this user.  Where none can be used, it is the state home.
    """
    reason = ""
    for place in shared_homes():
        try:
            directory = open_directory(place)
        except NotOurs as error:
            reason = reason or str(error)
            continue
        try:
            usable = os.access(f"/proc/self/fd/{directory}", os.W_OK | os.X_OK, effective_ids=True)
        finally:
            os.close(directory)
        if usable:
            return place
    try:
        return state_home()
    except NotOurs as error:
        raise NotOurs(f"{error}; {reason}" if reason else str(error)) from None


def covers_directory() -> str:
    """Where it is recorded what covers missing names; raises NotOurs."""
    return os.path.join(user_directory(), "covers")


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


def results_directory() -> str:
    """The directory of stored results, in the state home, made if missing; raises NotOurs."""
    place = os.path.join(state_home(), "results")
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
    return [place for place in (first, shared_home()) if place is not None]


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


def shared_home() -> str:
    """The directory of this user that depends on nothing else."""
    return f"/var/tmp/handrail-{os.geteuid()}"  # noqa: S108 (refused unless it is ours alone)


def shared_homes() -> list[str]:
    """Where that directory may be, whatever the environment says; the first that can be used is."""
    first = shared_home()
    home = _home_of_user() if _is_taken(first) else None
    return [first] if home is None else [first, os.path.join(home, ".local/state/handrail")]


def _is_taken(place: str) -> bool:
    """Whether it is another user's."""
    try:
        return os.lstat(place).st_uid != os.geteuid()
    except OSError:
        return False


def _home_of_user() -> str | None:
    """The home of this user in the system's list, not that of the environment."""
    import pwd

    try:
        return _absolute(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None


def _absolute(path: str | None) -> str | None:
    """A path of the environment if absolute and without ``..``, ambiguous behind links."""
    return os.path.normpath(path) if path and path.startswith("/") else None


def _is_private(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return ours and stat.S_ISDIR(status.st_mode)


# --- what sandboxes cover ---------------------------------------------------------------------


def add(path: str | bytes, *, directory: bool = False, readable: bool = False) -> None:
    """Let every sandbox of this program cover a place that it was given."""
    place = os.path.abspath(os.fsencode(path))
    if not contains(place):
        _added[place] = directory
        if readable:
            _readable.add(place)


def open_workspaces(path: str) -> None:
    """Let a sandbox that names a workspace in this directory, by its root or tmp, have it."""
    _workspaces.add(os.path.realpath(os.fsencode(path)))


def has_workspaces() -> bool:
    """Whether this program makes workspaces."""
    return bool(_workspaces)


def workspace_around(path: bytes) -> bytes | None:
    """The directory of the workspace in whose root or tmp a path lies, if it lies in one."""
    for base in _workspaces:
        if path.startswith(base + b"/"):
            parts = path[len(base) + 1 :].split(b"/")
            if len(parts) >= 2 and parts[1] in (b"root", b"tmp") and b".." not in parts:
                return base + b"/" + parts[0]
            return None
    return None


def workspaces_around(path: bytes) -> bytes | None:
    """The directory of all workspaces in which a path lies, if it lies in one."""
    return next((base for base in _workspaces if path.startswith(base + b"/")), None)


def is_workspace(path: bytes) -> bool:
    """Whether a path is, or lies in, the root or tmp of a workspace: it is for its commands."""
    return workspace_around(path) is not None


def remember(path: str) -> bool:
    """Have the sandboxes of all handrail programs cover a directory until it is out of use.

    Returns False when commands may have written there: it was not covered before.
    """
    place = os.path.abspath(os.fsencode(path))
    if any(place.startswith(ours + b"/") for ours in listed()):
        return True
    real = os.path.realpath(place)
    known = real in remembered()
    _added[place] = True
    try:
        directory = open_directory(os.path.join(user_directory(), _REMEMBERED))
        try:
            from _blake2 import blake2b  # only for a server that was given one

            name = blake2b(real, digest_size=16).hexdigest()
            _record(directory, name, b"%b\0%d" % (real, mount_namespace()))
        finally:
            os.close(directory)
    except (NotOurs, OSError):
        return True  # nothing can be kept, here or before: this program covers it all the same
    return known


def _record(directory: int, name: str, data: bytes) -> None:
    """Write a record whole, for another program may be reading it; raises OSError.

    One that is there already stays: plans depend on the time of the directory.
    """
    try:
        file = open_file(directory, name, os.O_RDWR)
    except FileNotFoundError:
        pass
    else:
        try:
            if os.read(file, len(data) + 1) == data:
                os.utime(file)
                return
        finally:
            os.close(file)
    replace_file(directory, name, data, stage=f".{name}")


def forget(*paths: str) -> None:
    """End what `remember` began: no program uses these directories, and no secret is in them."""
    remembered(without={os.path.realpath(os.fsencode(path)) for path in paths})


def state_directories() -> list[str]:
    """The state directories that servers were given, and that exist."""
    return [os.fsdecode(place) for place in remembered()]


def remembered(*, without: Container[bytes] = ()) -> list[bytes]:
    """The directories that were given to handrail programs, and exist; forget some of them."""
    found = []
    for home in dict.fromkeys((*state_homes(), *shared_homes())):
        try:
            above = os.open(home, DIRECTORY)  # no link, which another user may have made
            try:
                directory = os.open(_REMEMBERED, DIRECTORY, dir_fd=above)
            finally:
                os.close(above)
        except OSError:
            continue
        try:
            for name in os.listdir(directory):
                place = b"" if name.startswith(".") else _read_place(directory, name, without)
                if place:
                    found.append(place)
        finally:
            os.close(directory)
    return found


def _read_place(directory: int, name: str, without: Container[bytes]) -> bytes:
    """Read the path recorded under a name; empty if there is none, and forgotten if it is gone."""
    try:
        file = open_file(directory, name, os.O_RDONLY)
        try:
            place, _, namespace = os.read(file, 8192).partition(b"\0")
            written = os.fstat(file).st_mtime
        finally:
            os.close(file)
        if place.startswith(b"/") and place not in without:
            try:
                if stat.S_ISDIR(os.stat(place).st_mode):
                    return place
            except (FileNotFoundError, NotADirectoryError):
                if namespace and _is_elsewhere(namespace, written):
                    return b""
            except OSError:
                return b""  # it cannot be told: this program may not look there
        os.unlink(name, dir_fd=directory)
    except OSError:
        pass  # no file of ours, or another program was quicker
    return b""


def _is_elsewhere(namespace: bytes, written: float) -> bool:
    """Whether a directory may exist where we do not see it: in a mount namespace since the boot."""
    if namespace == b"%d" % mount_namespace():
        return False
    import time  # only for a program in a container, or beside one

    return written > time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def mount_namespace() -> int:
    """The inode of our mount namespace; 0: there is no /proc."""
    try:
        return os.stat("/proc/self/ns/mnt").st_ino
    except OSError:
        return 0  # as one namespace with all others that have no /proc


def contains(path: str | bytes) -> bool:
    """Whether a path is a private place, or lies in one."""
    place = os.path.abspath(os.fsencode(path))
    return any(place == ours or place.startswith(ours + b"/") for ours in listed())


def revision() -> tuple[int, ...]:
    """A number that changes with the list: by ``add``, or by ``remember`` of any program."""
    changes = []
    for file in _lists():
        try:
            changes.append(os.stat(file).st_mtime_ns)
        except OSError:
            changes.append(0)
    return len(_added), *changes


#: What the files depend on that have the list, and their paths: they are asked for at each call.
_known_lists: tuple[tuple[object, ...], list[str]] = ((), [])


def _lists() -> list[str]:
    """The files in which places are written down."""
    global _known_lists
    shared = shared_home()
    variables = os.environb.get(b"XDG_STATE_HOME"), os.environb.get(b"HOME")
    key = *variables, shared, _is_taken(shared)
    if _known_lists[0] != key:
        homes = dict.fromkeys((*state_homes(), *shared_homes()))
        _known_lists = key, [os.path.join(home, _REMEMBERED) for home in homes]
    return _known_lists[1]


def is_directory(path: bytes) -> bool:
    """Whether a missing place would be a directory."""
    return _added.get(path, True)


def is_readable(path: bytes) -> bool:
    """Whether commands may read a place: rules are no secret, and a handrail inside needs them."""
    homes = (default_config_home(), config_home(), SYSTEM_CONFIG)
    return path in _readable or os.fsdecode(path) in homes


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
    candidates = [default_state_home(), default_config_home(), config_home(), SYSTEM_CONFIG]
    candidates += shared_homes()
    for variable in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        given = _absolute(os.environ.get(variable))
        candidates.append(None if given is None else os.path.join(given, "handrail"))
    # Also for a program that was started without the variables of the user's session.
    session = f"/run/user/{os.geteuid()}"
    candidates.append(f"{session}/handrail" if os.path.isdir(session) else None)
    places = {os.path.normpath(os.fsencode(place)): True for place in candidates if place}
    places[_retired()] = True  # a program of an earlier version may run
    places.update(dict.fromkeys(remembered(), True))
    places.update(_added)
    return places
