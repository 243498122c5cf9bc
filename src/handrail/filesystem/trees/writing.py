"""Links, directories and large files by one call, never outside the root.

The names come from another machine, which may be hostile: each is checked, every directory on the
way is opened without crossing a link, and a link at the name itself is replaced, not followed.
Doing a call twice leads to the same state, so a caller that does not know whether it was done
repeats it.  Whole files are written by ``file_batches``.

A large file comes in parts, by several calls.  Its stage has a name, which outlives the connection,
so that the caller goes on behind the last part that was confirmed.  A caller that never comes back
leaves it; the next large file in that directory removes it after a day.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Sequence

from handrail.errors import FilesError
from handrail.filesystem import names
from handrail.filesystem.content import write_at
from handrail.filesystem.errors import NativePath, native, os_error, os_errors, refusal
from handrail.filesystem.no_follow import open_no_follow
from handrail.filesystem.stage_names import fresh, remove_abandoned
from handrail.filesystem.trees.directory_fds import DirectoryFds
from handrail.filesystem.trees.entry import DIRECTORY, Change, problem
from handrail.filesystem.trees.file_batches import dress, set_time
from handrail.filesystem.trees.inside_root import check_relative
from handrail.filesystem.trees.turns import calls, turn

_PREFIX = b".handrail-"
_STAGE = re.compile(r"[0-9a-f]{16}")
#: Seconds after which the stage of a large file counts as left.
STALE_SECONDS = 24 * 3600.0


def make_changes(
    root: NativePath, changes: Sequence[Change], data: bytes | memoryview
) -> list[FilesError | None]:
    """Make each change below a directory that exists; returns an error or None for each."""
    raw = native(root)
    with os_errors(raw):
        fds = DirectoryFds(raw)
    view = memoryview(data)
    done: list[FilesError | None] = []
    start = 0
    last = all(change.kind == DIRECTORY for change in changes)
    with fds, calls.below(raw, last=last), turn():
        for change in changes:
            part = view[start : start + change.length]
            start += change.length
            done.append(_change(raw, fds, change, part))
    return done


def _change(raw: bytes, fds: DirectoryFds, change: Change, data: memoryview) -> FilesError | None:
    try:
        check_relative(change.path)
        work = _WORK.get(change.kind)
        if work is None or len(data) != change.length:
            raise refusal(f"a change of the kind `{change.kind}` is not known", change.path)
        work(fds, change, data)
    except OSError as error:
        return problem(raw, change.path, error)
    except OverflowError:
        return problem(raw, change.path, os_error(errno.EINVAL))
    return None


# --- links and directories ----------------------------------------------------------------------


def _link(fds: DirectoryFds, change: Change, data: memoryview) -> None:
    above, _, name = change.path.rpartition(b"/")
    here = fds.get(above, make=True)
    names.check(here, name)
    if not change.target or b"\0" in change.target:
        raise os_error(errno.EINVAL)
    try:
        os.symlink(change.target, name, dir_fd=here)
    except FileExistsError:
        stage = fresh()
        os.symlink(change.target, stage, dir_fd=here)
        try:
            os.rename(stage, name, src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            os.unlink(stage, dir_fd=here)
            raise
    set_time(name, here, change.modified_ns)


def _directory(fds: DirectoryFds, change: Change, data: memoryview) -> None:
    """Make a directory, and set mode and time, which content made later would change."""
    fd = open_no_follow(b".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fds.get(change.path, make=True))
    try:
        dress(fd, change.mode, change.modified_ns)
    finally:
        os.close(fd)


# --- large files, in parts ----------------------------------------------------------------------


def _part(fds: DirectoryFds, change: Change, data: memoryview) -> None:
    here, _, stage = _place(fds, change)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not change.offset:
        _sweep(here)
        flags |= os.O_CREAT
    fd = os.open(stage, flags, 0o600, dir_fd=here)
    try:
        _check_stage(fd)
        write_at(fd, data, change.offset)
    finally:
        os.close(fd)


def _finish(fds: DirectoryFds, change: Change, data: memoryview) -> None:
    """Make the stage the file; ``offset`` is the size that it must have."""
    here, name, stage = _place(fds, change)
    try:
        fd = os.open(stage, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except FileNotFoundError:
        if _is_done(here, name, change):
            return  # repeated: the answer to the first call was lost
        raise
    try:
        _check_stage(fd)
        if os.fstat(fd).st_size < change.offset:
            raise refusal("parts of the file are missing, so it was not put in place", change.path)
        os.ftruncate(fd, change.offset)
        dress(fd, change.mode, change.modified_ns)
    finally:
        os.close(fd)
    os.rename(stage, name, src_dir_fd=here, dst_dir_fd=here)


def _is_done(here: int, name: bytes, change: Change) -> bool:
    try:
        status = os.stat(name, dir_fd=here, follow_symlinks=False)
    except OSError:
        return False
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size == change.offset
        and status.st_mtime_ns == change.modified_ns
    )


def _abandon(fds: DirectoryFds, change: Change, data: memoryview) -> None:
    try:
        here, _, stage = _place(fds, change, make=False)
        remove_abandoned(here, stage)
    except FileNotFoundError:
        pass


def _place(fds: DirectoryFds, change: Change, *, make: bool = True) -> tuple[int, bytes, bytes]:
    """Directory, name and stage of a large file."""
    above, _, name = change.path.rpartition(b"/")
    if not _STAGE.fullmatch(change.stage) or change.offset < 0:
        raise os_error(errno.EINVAL)
    here = fds.get(above, make=make)
    names.check(here, name)
    return here, name, _PREFIX + change.stage.encode()


def _check_stage(fd: int) -> None:
    """Refuse what another user has put there under our name."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        raise os_error(errno.EEXIST)


def _sweep(here: int) -> None:
    """Remove stages of this directory whose callers have not come back."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    except OSError:
        return
    try:
        with os.scandir(fd) as found:
            left = [os.fsencode(one.name) for one in found if one.name.startswith(".handrail-")]
        for name in left:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if time.time() - status.st_mtime > STALE_SECONDS:
                remove_abandoned(fd, name)
    except OSError:
        pass  # it is gone, or not ours to list
    finally:
        os.close(fd)


_WORK = {
    "link": _link,
    "directory": _directory,
    "part": _part,
    "finish": _finish,
    "abandon": _abandon,
}
