"""Moving a name to another place of the same machine."""

from __future__ import annotations

import errno
import os

from handrail.filesystem import names
from handrail.filesystem.copying import copy
from handrail.filesystem.errors import NativePath, native, os_errors
from handrail.filesystem.no_follow import open_parent
from handrail.filesystem.removal import remove


def move(source: NativePath, destination: NativePath) -> None:
    """Rename; a file that is there is replaced.  Between file systems: copy, then remove."""
    origin, target = native(source), native(destination)
    with os_errors(origin):
        from_dir, from_name = open_parent(origin, follow=True)
        try:
            to_dir, to_name = _parent_of(target)
            try:
                names.check(from_dir, from_name)
                names.check(to_dir, to_name)
                os.rename(from_name, to_name, src_dir_fd=from_dir, dst_dir_fd=to_dir)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
            finally:
                os.close(to_dir)
        finally:
            os.close(from_dir)
    copy(origin, target, recursive=True)
    remove(origin, recursive=True)


def _parent_of(target: bytes) -> tuple[int, bytes]:
    with os_errors(target):  # the error names this path, not the source
        return open_parent(target, follow=True)
