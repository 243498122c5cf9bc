"""A directory that is new: filled under the name of a stage, then renamed, so it appears whole.

A file in it needs no stage and no link of its own: four system calls instead of five, and the two
dearest of those become one.  The stage is locked while its writer lives and is named after the
directory, so the next write of that directory removes what a killed writer has left, and so does
the next server (``stage_names``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from handrail import fault_points
from handrail.filesystem import names, stage_names, syscalls
from handrail.filesystem.stage_names import for_target, remove_abandoned

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NewDirectory:
    """The stage of a directory: made, filled by way of ``fd``, published, closed."""

    def __init__(self, parent: int, name: bytes) -> None:
        """Make the stage in an open directory; raises OSError when that is not possible."""
        self._parent = parent
        self._name = name
        self._stage = for_target(name)
        self._published = False
        stage_names.journal.note(parent, self._stage)
        try:
            self.fd = self._make()
        except BaseException:
            stage_names.journal.done()
            raise

    def _make(self) -> int:
        try:
            os.mkdir(self._stage, dir_fd=self._parent)
        except FileExistsError:
            remove_abandoned(self._parent, self._stage)
            os.mkdir(self._stage, dir_fd=self._parent)
        fd = os.open(self._stage, _OPEN, dir_fd=self._parent)
        try:
            # Before the lock another writer may take it for abandoned: then it is gone.
            if not stage_names.lock(fd) or not os.fstat(fd).st_nlink:
                raise FileExistsError
        except BaseException:
            os.close(fd)
            raise
        return fd

    def publish(self) -> None:
        """Give the directory its name; raises OSError, EEXIST if that is taken."""
        if fault_points.armed:
            fault_points.point("directory.filled")
        syscalls.rename_new(self._stage, self._name, self._parent)
        self._published = True

    def pour(self, target: int, written: Sequence[bytes]) -> dict[bytes, OSError]:
        """Move the files into the directory that is there instead; what failed, by name."""
        failed = {}
        for name in written:
            try:
                names.check(target, name)
                os.rename(name, name, src_dir_fd=self.fd, dst_dir_fd=target)
            except OSError as error:
                failed[name] = error
        return failed

    def close(self) -> None:
        """Remove the stage, with what is in it, unless it has the directory's name now."""
        os.close(self.fd)  # the lock goes with it
        if not self._published:
            remove_abandoned(self._parent, self._stage)
        stage_names.journal.done()
