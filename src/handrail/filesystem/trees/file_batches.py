"""Whole files, many by one call, never outside the root.

The names come from another machine, which may be hostile: each is checked, every directory on the
way is opened without crossing a link, and a link at the name itself is replaced, not followed.
Each file arrives whole or not at all.  Doing a call twice leads to the same state, so a caller
that does not know whether it was done repeats it.

A new directory appears with the files that the call has for it (``new_directory``).  In one that
is there a new file is written without a name (O_TMPFILE) and linked.  Where that cannot be, or the
name is taken, it is renamed over it from a stage; where the directory takes no stage, or the target
cannot be renamed over, ``replacement`` writes it as any other file call does.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator

from handrail.errors import FilesError
from handrail.filesystem import names, syscalls
from handrail.filesystem.content import write_all
from handrail.filesystem.errors import NativePath, native, os_error, os_errors, refusal
from handrail.filesystem.replacement import Replacement
from handrail.filesystem.stage_names import fresh
from handrail.filesystem.trees.directory_fds import DirectoryFds
from handrail.filesystem.trees.entry import MODE_BITS, Batch, joined, problem
from handrail.filesystem.trees.inside_root import are_sound, check_relative
from handrail.filesystem.trees.new_directory import NewDirectory
from handrail.filesystem.trees.turns import calls, turn

_NAMELESS = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: There can be no file without a name here, or it cannot be linked.
_NO_TMPFILE = {errno.EISDIR, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT, errno.ENOSYS}
_NO_TMPFILE |= {errno.EPERM, errno.EACCES, errno.EXDEV}
#: No stage beside the target, or no rename over it: written by ``replacement``.
_NOT_BY_RENAME = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.EINVAL}

#: Below this the stage of a directory costs more than it saves.
_FEW = 4

#: Name, mode, time and content of a file.
_Row = tuple[bytes, int, int, memoryview]

_tmpfile_works = True


def write_files(root: NativePath, batch: Batch) -> dict[int, FilesError]:
    """Write the files below a directory that exists; returns what failed, by position.

    Raises FilesError if nothing can be written or the batch does not fit together.
    """
    raw = native(root)
    _check_batch(raw, batch)
    with os_errors(raw):
        fds = DirectoryFds(raw)
    rows = _rows(batch)
    failed: dict[int, FilesError] = {}
    first = 0
    with fds, calls.below(raw, last=False), turn():
        for directory, names_ in batch.groups:
            group = list(itertools.islice(rows, len(names_)))
            for index, error in _write_group(fds, directory, group).items():
                path = joined(directory, names_[index])
                failed[first + index] = problem(raw, path, error)
            first += len(group)
    return failed


def _check_batch(raw: bytes, batch: Batch) -> None:
    count = sum(len(group.names) for group in batch.groups)
    if (
        {len(batch.modes), len(batch.times), len(batch.lengths)} != {count}
        or min(batch.lengths, default=0) < 0
        or sum(batch.lengths) != len(batch.data)
    ):
        raise refusal("names, modes, times, lengths and content do not fit together", raw)


def _rows(batch: Batch) -> Iterator[_Row]:
    view = memoryview(batch.data)
    names_ = itertools.chain.from_iterable(group.names for group in batch.groups)
    start = 0
    for name, mode, when, length in zip(
        names_, batch.modes, batch.times, batch.lengths, strict=True
    ):
        end = start + length
        yield name, mode & MODE_BITS, when, view[start:end]
        start = end


def _write_group(fds: DirectoryFds, directory: bytes, rows: list[_Row]) -> dict[int, OSError]:
    """Write files of one directory; returns what failed, by position."""
    try:
        if directory:
            check_relative(directory)
        new = _new_directory(fds, directory, rows)
        if new is not None:
            return _fill(fds, directory, new, rows)
        here = fds.get(directory, make=True)
    except OSError as error:
        return dict.fromkeys(range(len(rows)), error)
    failed: dict[int, OSError] = {}
    for index, row in enumerate(rows):
        try:
            check_relative(row[0], alone=True)
            names.check(here, row[0])
            _file(fds, here, row)
        except OverflowError:
            failed[index] = os_error(errno.EINVAL)
        except OSError as error:
            failed[index] = error
    return failed


def _new_directory(fds: DirectoryFds, directory: bytes, rows: list[_Row]) -> NewDirectory | None:
    """The stage of a directory that is missing; None: it is there, or this is not the way."""
    if len(rows) < _FEW or not directory or not are_sound([row[0] for row in rows]):
        return None
    try:
        fds.get(directory)
        return None
    except FileNotFoundError:
        above, _, name = directory.rpartition(b"/")
        parent = fds.get(above, make=True)
    try:
        return NewDirectory(parent, name) if names.is_free(parent, name) else None
    except OSError:
        return None


def _fill(
    fds: DirectoryFds, directory: bytes, new: NewDirectory, rows: list[_Row]
) -> dict[int, OSError]:
    """Write files into the stage of their directory and put it in place."""
    failed: dict[int, OSError] = {}
    try:
        _write_new(new.fd, rows, failed)
        try:
            new.publish()
        except OSError:
            # Another call has made it just now, or the file system cannot rename without replacing.
            here = fds.get(directory, make=True)
            written = {row[0]: index for index, row in enumerate(rows) if index not in failed}
            for name, why in new.pour(here, list(written)).items():
                failed[written[name]] = why
    finally:
        new.close()
    return failed


def _write_new(here: int, rows: list[_Row], failed: dict[int, OSError]) -> None:
    """Write files of a directory in which no other process writes."""
    modes: dict[int, bool] = {}
    for index, (name, mode, when, data) in enumerate(rows):
        try:
            fd = os.open(name, _NEW | os.O_WRONLY, mode, dir_fd=here)
            try:
                write_all(fd, data)
                given = modes.get(mode)
                if given is None:  # the umask or an ACL may keep bits back, from all alike
                    given = modes[mode] = os.fstat(fd).st_mode & 0o7777 == mode
                if not given:
                    os.fchmod(fd, mode)
                os.utime(fd, ns=(when, when))
            except BaseException:
                os.unlink(name, dir_fd=here)
                raise
            finally:
                os.close(fd)
        except OverflowError:
            failed[index] = os_error(errno.EINVAL)
        except OSError as error:
            failed[index] = error


def _file(fds: DirectoryFds, here: int, row: _Row) -> None:
    if not (_tmpfile_works and _linked(fds, here, row)):
        _renamed(here, row)


def _linked(fds: DirectoryFds, here: int, row: _Row) -> bool:
    """Write a new file without a name and link it; False: not possible here."""
    global _tmpfile_works
    name, mode, when, data = row
    try:
        fd = os.open(b".", _NAMELESS, mode, dir_fd=here)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EOPNOTSUPP):
            _tmpfile_works = False
        if error.errno in _NO_TMPFILE | _NOT_BY_RENAME:
            return False
        raise
    try:
        write_all(fd, data)
        if not fds.gives_mode(here, mode, fd):
            os.fchmod(fd, mode)
        os.utime(fd, ns=(when, when))
        syscalls.link_fd(fd, name, here)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
        _tmpfile_works = False  # a filter refuses to link it
        return False
    finally:
        os.close(fd)
    return True


def _renamed(here: int, row: _Row) -> None:
    name, mode, when, data = row
    stage = fresh()
    try:
        fd = os.open(stage, _NEW | os.O_WRONLY, 0o600, dir_fd=here)
        try:
            try:
                write_all(fd, data)
                dress(fd, mode, when)
            finally:
                os.close(fd)
            os.rename(stage, name, src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            os.unlink(stage, dir_fd=here)
            raise
    except OSError as error:
        if error.errno not in _NOT_BY_RENAME:
            raise
        _replaced(here, row)


def _replaced(here: int, row: _Row) -> None:
    name, mode, when, data = row
    replacement = Replacement(name, follow=False, mode=mode, dir_fd=here)
    try:
        replacement.write(data)
        replacement.commit()
    finally:
        replacement.discard()
    set_time(name, here, when)


def dress(fd: int, mode: int, modified_ns: int) -> None:
    """Set mode and time of an open file or directory."""
    os.fchmod(fd, mode & MODE_BITS)
    os.utime(fd, ns=(modified_ns, modified_ns))


def set_time(name: bytes, here: int, modified_ns: int) -> None:
    """Set the time of a name in a directory, also of a link."""
    os.utime(name, ns=(modified_ns, modified_ns), dir_fd=here, follow_symlinks=False)
