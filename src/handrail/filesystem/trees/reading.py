"""Content of many files in one answer."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from handrail.errors import FilesError
from handrail.filesystem import own_processes
from handrail.filesystem.errors import NativePath, native, not_a_file, os_errors, refusal
from handrail.filesystem.regular_file import CAREFUL, read_range
from handrail.filesystem.trees.directory_fds import DirectoryFds
from handrail.filesystem.trees.entry import Wanted, check_relative, problem
from handrail.filesystem.trees.turns import turn

#: The most bytes of one answer.
MOST_BYTES = 2 * 1024 * 1024

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | CAREFUL


def read_files(root: NativePath, wanted: Sequence[Wanted]) -> list[bytes | FilesError]:
    """The content of each, shorter where a file ends; a link in a path is never followed."""
    raw = native(root)
    if sum(max(one.length, 0) for one in wanted) > MOST_BYTES:
        raise refusal(f"at most {MOST_BYTES} bytes are read in one call", raw)
    with os_errors(raw):
        fds = DirectoryFds(raw)
    with fds, turn():
        return [_read(raw, fds, one) for one in wanted]


def _read(raw: bytes, fds: DirectoryFds, one: Wanted) -> bytes | FilesError:
    try:
        check_relative(one.path)
        above, _, name = one.path.rpartition(b"/")
        here = fds.get(above)
        fd = os.open(name, _FLAGS, dir_fd=here)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise not_a_file(one.path, follow=False)
            if status.st_dev != fds.device(above):  # the directory was checked when it was opened
                own_processes.refuse(fd, status)
            return read_range(fd, one.offset, one.length)
        finally:
            os.close(fd)
    except OSError as error:
        return problem(raw, one.path, error)
