"""Where a child starts and which file it runs.

The directory is opened once and travels as a descriptor, so that what was checked is what is
used.  A bare name is searched in the *child's* PATH, relative entries from the child's
directory, as execvp would.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail.start_errors import SpawnFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: For a child without a PATH of its own.
DEFAULT_PATH = b"/usr/local/bin:/bin:/usr/bin"

#: Values of variables that are no more together need no closer look.
_SURELY_TAKEN = 32 * 1024

#: The last PATH that was searched, and its places.
_last: tuple[bytes, tuple[bytes, ...]] = (b"", (b"./",))


def open_cwd(path: bytes) -> int:
    """Open the directory a child is to start in."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _no_start_in(path, error.errno or 0) from None


def _no_start_in(path: bytes, number: int) -> SpawnFailed:
    name = os.fsdecode(path)
    return SpawnFailed(f"cannot start in {name}: {os_text(number)}", errno=number, path=name)


def find_program(name: bytes, env: Mapping[bytes, bytes], cwd: int) -> bytes:
    """The path to run for ``name``; raises SpawnFailed when there is none."""
    if b"/" in name:
        return name
    denied = False
    places = _places(env.get(b"PATH", DEFAULT_PATH))
    for place in places:  # an answer is quicker than an exception, and most directories have none
        path = place + name
        if os.access(path, os.X_OK, dir_fd=cwd, effective_ids=True) and stat.S_ISREG(
            _mode(path, cwd)
        ):
            return path
    for place in places:
        path = place + name
        try:
            mode = os.stat(path, dir_fd=cwd).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and _may_execute(path, cwd):
            return path
        denied = True
    number = errno.EACCES if denied else errno.ENOENT
    raise spawn_failed(name, number)


def _places(path: bytes) -> tuple[bytes, ...]:
    """What a name is put behind, for each entry of a PATH; most commands have the same one."""
    global _last
    if _last[0] != path:
        _last = path, tuple([entry + b"/" if entry else b"./" for entry in path.split(b":")])
    return _last[1]


def _mode(path: bytes, cwd: int) -> int:
    try:
        return os.stat(path, dir_fd=cwd).st_mode
    except OSError:
        return 0


def _may_execute(path: bytes, cwd: int) -> bool:
    if os.access(path, os.X_OK, dir_fd=cwd, effective_ids=True):
        return True
    # A filter may refuse the call that takes a directory and asks with our effective ids.
    full = path if path.startswith(b"/") else b"/proc/self/fd/%d/%b" % (cwd, path)
    return os.geteuid() == os.getuid() and os.access(full, os.X_OK)


def check(name: bytes, env: Mapping[bytes, bytes], cwd: bytes) -> None:
    """Raise SpawnFailed for a program that its wrapper could not start either.

    For one in a sandbox: bubblewrap would say so with an exit code, like any command's own.
    """
    if _too_large(env):
        raise spawn_failed(name, errno.E2BIG)
    directory = open_cwd(cwd)
    try:
        if not os.access(".", os.X_OK, dir_fd=directory, effective_ids=True):
            raise _no_start_in(cwd, errno.EACCES)
        path = find_program(name, env, directory)
        try:
            mode = os.stat(path, dir_fd=directory).st_mode
        except OSError as error:
            raise spawn_failed(name, error.errno or 0) from None
        if not stat.S_ISREG(mode) or not _may_execute(path, directory):
            raise spawn_failed(name, errno.EACCES)
    finally:
        os.close(directory)


def _too_large(env: Mapping[bytes, bytes]) -> bool:
    """Whether the kernel would start no program with these variables."""
    if sum(map(len, env.values())) < _SURELY_TAKEN:
        return False
    sizes = [len(name) + len(value) + 1 for name, value in env.items()]
    return max(sizes) > _longest_word() or sum(sizes) > os.sysconf("SC_ARG_MAX")


def _longest_word() -> int:
    """How long an argument or variable may be: MAX_ARG_STRLEN of Linux, without its NUL."""
    return 32 * os.sysconf("SC_PAGE_SIZE") - 1


def spawn_failed(program: bytes, number: int) -> SpawnFailed:
    """The error for a program that the kernel did not start."""
    # What is too long is the command's own, also where a wrapper was to be started.
    name = "the command" if number == errno.E2BIG else os.fsdecode(program)
    return SpawnFailed(f"cannot start {name}: {os_text(number)}", errno=number, path=name)


def os_text(number: int) -> str:
    """The kernel's sentence with the errno, which a program can look at."""
    text = os.strerror(number)
    if number == errno.E2BIG:
        limit = os.sysconf("SC_ARG_MAX")
        text += (
            f" for arguments and environment together (at most {limit} bytes), or one of them is"
            f" longer than {_longest_word()}; give it by stdin or in a file"
        )
    return f"{text} (os error {number})"
