"""Directories and files for this user alone: how they are made, opened and replaced.

A directory is made component by component from fds, for its owner alone whatever the umask says; a
file in it is opened by the directory's fd, and a link, a pipe or a file of another user is refused.
``private_places`` says which there are.

Standard library only, and little of it: ``handrail sandbox`` imports this each time.
"""

from __future__ import annotations

import errno
import os
import stat

from handrail.start_errors import UsageError

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


class NotOurs(UsageError):
    """A path cannot be used as a private place; nothing was written there."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


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
        return os.open(name, DIRECTORY, dir_fd=above)
    except FileNotFoundError:
        os.close(_make(above, name))
        return os.open(name, DIRECTORY, dir_fd=above)


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
    return _widen(name, above, mode)


def _widen(name: str | bytes, above: int | None, mode: int) -> int:
    """Give a new directory of ours what the umask took; an ``O_PATH`` descriptor of it."""
    try:
        made = os.open(name, _STEP | os.O_DIRECTORY, dir_fd=above)
    except OSError:
        os.rmdir(name, dir_fd=above)  # no descriptor is left: nor is what is not recorded
        raise
    try:
        status = os.fstat(made)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & mode != mode:
            # By /proc: fchmod wants more than O_PATH.
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
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    may_wait = (
        flags & (os.O_CREAT | os.O_EXCL) != os.O_CREAT | os.O_EXCL
    )  # what is made now is a regular file
    if may_wait:
        flags |= os.O_NONBLOCK
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
        if may_wait:
            os.set_blocking(opened, True)
    except BaseException:
        os.close(opened)
        raise
    return opened


def is_locked(fd: int, *, exclusively: bool = True) -> bool:
    """Whether another program holds a lock on the open file ``fd``, which is closed.

    The file is locked only briefly, for its program may start just now.  ``exclusively``: a shared
    lock counts as none.
    """
    import fcntl  # few starts need it

    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if exclusively else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def replace_file(
    directory: int, name: str, data: bytes, stage: str = "", *, sync: bool = False
) -> None:
    """Write a private file whole: a reader finds the previous content or this one; raises OSError.

    ``stage`` is its name until then: one of its own where several threads may write the file.
    ``sync``: the content outlives a reboot.
    """
    stage = stage or f"{name}.new"
    file = open_file(directory, stage, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while data:
            data = data[os.write(file, data) :]
        if sync:
            os.fsync(file)
    finally:
        os.close(file)
    os.rename(stage, name, src_dir_fd=directory, dst_dir_fd=directory)


def socket_address(directory: int, name: str) -> str:
    """A socket's path by its directory's fd: the full path may exceed the kernel's limit."""
    return f"/proc/self/fd/{directory}/{name}"


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "something on the way is a link or no directory"
    return error.strerror or str(error)
