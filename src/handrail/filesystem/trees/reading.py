"""Content of many files in one answer."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from handrail.filesystem import own_processes
from handrail.filesystem.errors import NativePath, native, not_a_file, os_errors, refusal
from handrail.filesystem.regular_file import CAREFUL, read_range
from handrail.filesystem.trees.directory_fds import DirectoryFds
from handrail.filesystem.trees.entry import MODE_BITS, Contents, Names, joined, problem
from handrail.filesystem.trees.inside_root import are_sound, check_relative
from handrail.filesystem.trees.turns import turn

#: The most bytes of one answer.
MOST_BYTES = 2 * 1024 * 1024

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | CAREFUL


def read_files(root: NativePath, wanted: Sequence[Names]) -> Contents:
    """Read each file that still fits into the answer; a link in a path is never followed."""
    raw = native(root)
    with os_errors(raw):
        fds = DirectoryFds(raw)
    found = Contents([], [], [], b"", {}, {})
    parts: list[bytes] = []
    with fds, turn():
        for directory, names in wanted:
            try:
                if directory:
                    check_relative(directory)
                _read_group(raw, fds, directory, names, found, parts)
            except OSError as error:
                for index, name in enumerate(names, len(found.lengths)):
                    found.problems[index] = problem(raw, joined(directory, name), error)
                nothing = [0] * len(names)
                found.modes.extend(nothing)
                found.times.extend(nothing)
                found.lengths.extend([-1] * len(names))
    return found._replace(data=b"".join(parts))


def _read_group(
    raw: bytes,
    fds: DirectoryFds,
    directory: bytes,
    names: list[bytes],
    found: Contents,
    parts: list[bytes],
) -> None:
    """Read files of one directory; raises OSError, before the first, if that cannot be opened."""
    here, device = fds.get(directory), fds.device(directory)
    sound = are_sound(names)
    modes, times, lengths, _, problems, large = found
    left = MOST_BYTES - sum(map(len, parts))
    for name in names:
        mode = when = 0
        length = -1
        try:
            if not sound:
                check_relative(name, alone=True)
            fd = os.open(name, _FLAGS, dir_fd=here)
            try:
                status = os.fstat(fd)
                mode, size, when = status.st_mode, status.st_size, status.st_mtime_ns
                if not stat.S_ISREG(mode):
                    raise not_a_file(name, follow=False)
                if status.st_dev != device:  # the directory was checked when it was opened
                    own_processes.refuse(fd, status)
                if size > left:
                    large[len(lengths)] = size
                else:
                    data = os.read(fd, size) if size else b""
                    length = len(data)
                    if length < size:  # cut meanwhile, or a file system that stops anywhere
                        data = read_range(fd, 0, size)
                        length = len(data)
                    left -= length
                    parts.append(data)
            finally:
                os.close(fd)
        except OSError as error:
            problems[len(lengths)] = problem(raw, joined(directory, name), error)
        modes.append(mode & MODE_BITS)
        times.append(when)
        lengths.append(length)


def read_part(root: NativePath, path: bytes, offset: int, length: int) -> bytes:
    """Read a part of one file, shorter where the file ends; raises FilesError."""
    raw = native(root)
    if length > MOST_BYTES:
        raise refusal(f"at most {MOST_BYTES} bytes are read in one call", raw)
    check_relative(path)
    above, _, name = path.rpartition(b"/")
    with os_errors(os.path.join(raw, path), follow=False), DirectoryFds(raw) as fds:
        fd = os.open(name, _FLAGS, dir_fd=fds.get(above))
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise not_a_file(path, follow=False)
            own_processes.refuse(fd, status)
            return read_range(fd, offset, length)
        finally:
            os.close(fd)
