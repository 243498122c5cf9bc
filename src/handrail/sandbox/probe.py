"""Probe which sandbox mechanisms this machine has.

Whether there is a usable bwrap, and what it supports, is found out once by running it and cached
beside our state, keyed by the program, the kernel and its settings; ``doctor`` tests all again.
"""

from __future__ import annotations

import os
import stat
import sys

from handrail import memory_file, own_code, private_files, private_places, start_bundle
from handrail.sandbox.light_dataclass import Frozen
from handrail.sandbox.profile import MINIMAL_ROOTS, Machine
from handrail.start_errors import SandboxUnavailable

#: Absolute paths: PATH is never searched.
BWRAP_PLACES = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
#: The user that stands for those without a uid in a user namespace.
_OVERFLOW = "/proc/sys/kernel/overflowuid"
#: Settings that say at run time what is possible; the first and the last belong to a namespace.
_SWITCHES = (
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "/proc/sys/vm/memfd_noexec",
)
_ENV = {"PATH": "/usr/bin:/bin"}
#: As in ``sandbox/syscalls/self_test.py``.
_UNDECIDED = 75
#: How often a program before bwrap is tried until it is taken for impossible here.
_APART_TRIES = 3
#: Version of the cache format.
_FORM = 3


class Bubblewrap(Frozen):
    """A bwrap that was seen to work."""

    path: str
    version: str
    fresh_proc: bool  # whether it may mount a new /proc
    argv0: bool  # whether it can set argv[0]
    #: Whether ``connect`` can be made for its commands (``syscalls/self_test.py``).
    connects: bool
    #: Whether it can be shielded from later mounts (``bwrap/private_mounts_stub.py``).
    apart: bool = False


def this_machine() -> Machine:
    """What symbolic roots mean here."""
    tmpdir = os.environb.get(b"TMPDIR") or None
    return Machine(
        tmpdir=tmpdir,
        home=os.fsencode(os.path.expanduser("~")),
        slash_tmp=os.path.isdir("/tmp"),  # noqa: S108
        minimal=tuple(path for path in MINIMAL_ROOTS if os.path.lexists(path)),
        private=tuple(private_places.listed()),
        own_code=own_code.places(*_looked_for()),
    )


def _looked_for() -> list[str]:
    """All paths up to the first where bwrap exists."""
    there = [os.path.exists(place) for place in BWRAP_PLACES]
    return list(BWRAP_PLACES[: there.index(True) + 1] if any(there) else BWRAP_PLACES)


def find_bubblewrap() -> str:
    """The path of a usable bwrap; raises SandboxUnavailable."""
    for place in BWRAP_PLACES:
        try:
            status = os.stat(place)
        except OSError:
            continue
        if status.st_mode & stat.S_ISUID:
            raise SandboxUnavailable(
                f"{place} is setuid, which can be turned against it; run `chmod u-s {place}`"
                " as root and enable unprivileged user namespaces"
            )
        if not _is_root(status.st_uid) or status.st_mode & 0o022:
            raise SandboxUnavailable(
                f"{place} can be changed by others than root; run `chown root {place}` and"
                f" `chmod 755 {place}` as root"
            )
        return place
    raise SandboxUnavailable(
        "bubblewrap is not installed, so no command can be sandboxed; run `apt install bubblewrap`"
        " (or the like of your system) as root"
    )


def _is_root(uid: int) -> bool:
    """Whether the owner of a system's file is root, as far as this user namespace shows it.

    Where root has no uid of its own, its files are shown as the overflow user's.
    """
    if uid == 0:
        return True
    try:
        with open("/proc/self/uid_map", "rb") as table, open(_OVERFLOW, "rb") as overflow:
            mapped = any(int(line.split()[0]) == 0 for line in table)
            return uid == int(overflow.read()) != os.geteuid() and not mapped
    except (OSError, ValueError):
        return False


def bubblewrap() -> Bubblewrap:
    """The bwrap to use, tested on this machine; raises SandboxUnavailable with its message."""
    path = find_bubblewrap()
    key = _key(path)
    known = _remembered(key)
    if known is not None:
        return known
    found, certain = start_bundle.unnoted(lambda: _try(path))
    if certain:
        _remember(key, found)
    return found


def _try(path: str) -> tuple[Bubblewrap, bool]:
    """Test a bwrap; return the result, and whether it may be cached."""
    from handrail.sandbox.bwrap.arguments import namespace_arguments

    version = _run([path, "--version"])[1].strip().removeprefix("bubblewrap ")
    options = _run([path, "--help"])[1]
    if "--ro-bind-fd" not in options:
        raise SandboxUnavailable(
            f"bubblewrap {version} cannot mount by descriptor (--bind-fd), so a path could be"
            " exchanged under it; install 0.10 or newer, or your system's security update"
        )
    base = [path, *(word.decode() for word in namespace_arguments(network=False))]
    base += ["--ro-bind", "/", "/", "--dev", "/dev"]
    code, said = _run([*base, "--proc", "/proc", "/bin/true"])
    fresh = code == 0
    if not fresh:
        code, said = _run([*base, "--perms", "0555", "--tmpfs", "/proc", "/bin/true"])
    if code != 0:
        raise SandboxUnavailable(
            f"bubblewrap does not work here ({said.strip()[-300:] or f'exit {code}'}); run"
            " `handrail doctor` to see what is missing"
        )
    self_test = os.path.join(os.path.dirname(__file__), "syscalls", "self_test.py")
    how = _run([sys.executable, "-I", "-S", self_test, path])[0]
    found = Bubblewrap(path, version, fresh, "--argv0" in options, how == 0, _try_apart(base))
    return found, how != _UNDECIDED


def _try_apart(base: list[str]) -> bool:
    from handrail.keeper.seccomp import spawn as seccomp_spawn
    from handrail.sandbox.bwrap import private_mounts_stub

    if not seccomp_spawn.startable():
        return False
    try:
        program = os.memfd_create("probe", os.MFD_CLOEXEC)
    except OSError:
        return False  # refused; a file on another mount may not be executable
    try:
        os.write(
            program, private_mounts_stub.elf(os.geteuid(), os.getegid(), private_mounts_stub.NUMBER)
        )
        words = [f"/proc/self/fd/{private_mounts_stub.NUMBER}", *base, "/bin/true"]
        # A busy machine may refuse it once, and a no is remembered.
        tries = range(_APART_TRIES)
        return any(_run(words, (private_mounts_stub.NUMBER, program))[0] == 0 for _ in tries)
    finally:
        os.close(program)


def receives_mounts(table: bytes) -> bool:
    """Whether later mounts would propagate into our namespaces, by the mount table of this one.

    Without a table it is not known that they would not.
    """
    return not table or b" shared:" in table or b" master:" in table


def _run(argv: list[str], *passed: tuple[int, int]) -> tuple[int, str]:
    """Run a program without our environment; return its exit code and all output."""
    fd = memory_file.create("probe")
    try:
        null = os.devnull
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, fd, 1),
            (os.POSIX_SPAWN_DUP2, fd, 2),
            *((os.POSIX_SPAWN_DUP2, ours, number) for number, ours in passed),
        ]
        pid = os.posix_spawn(argv[0], argv, _ENV, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), os.pread(fd, 65536, 0).decode(errors="replace")
    except OSError as error:
        return 127, error.strerror or "it cannot be run"
    finally:
        os.close(fd)


# --- cached between runs -----------------------------------------------------------------------


def _key(path: str) -> str:
    status = os.stat(path)
    system = os.uname()
    parts = (
        _FORM,
        path,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        system.release,
        os.getuid(),
    )
    return " ".join(map(str, (*parts, *map(_switch, _SWITCHES))))


def _switch(place: str) -> str:
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "-"  # this kernel has no such setting
    try:
        return os.read(fd, 64).decode().strip()
    finally:
        os.close(fd)


def _remembered(key: str) -> Bubblewrap | None:
    try:
        file = _open("bubblewrap", os.O_RDONLY)
        try:
            text = os.read(file, 65_536).decode()
        finally:
            os.close(file)
        first, path, version, *facts = text.split("\n")[:7]
        proc, argv0, connects, apart = (fact == "1" for fact in facts)
    except (OSError, ValueError):
        return None
    return Bubblewrap(path, version, proc, argv0, connects, apart) if first == key else None


def forget() -> None:
    """Delete the cache."""
    directory = _directory()
    try:
        os.unlink("bubblewrap", dir_fd=directory)
    except FileNotFoundError:
        pass
    finally:
        os.close(directory)


def _remember(key: str, found: Bubblewrap) -> None:
    facts = f"{found.fresh_proc:d}\n{found.argv0:d}\n{found.connects:d}\n{found.apart:d}\n"
    text = f"{key}\n{found.path}\n{found.version}\n{facts}"
    # Several threads of ours may write it at the same time.
    temporary = f"bubblewrap.{os.getpid()}-{os.urandom(4).hex()}"
    directory = _directory()
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        file = private_files.open_file(directory, temporary, flags)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)
        os.replace(temporary, "bubblewrap", src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        pass  # then the next run tests again
    finally:
        os.close(directory)


def _open(name: str, flags: int) -> int:
    directory = _directory()
    try:
        return private_files.open_file(directory, name, flags)
    finally:
        os.close(directory)


def _directory() -> int:
    try:
        return private_places.open_state_home()[1]
    except private_files.NotOurs as error:
        raise SandboxUnavailable(str(error)) from None
