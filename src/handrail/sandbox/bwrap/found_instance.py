"""A sandbox that a previous server has set up.

Its lease is of that server, so no object here removes its placeholders: what is told of its end
has them swept.
"""

from __future__ import annotations

import os

from handrail.keeper.proc_children import children_of, pid_namespace
from handrail.sandbox.bwrap.instance import RunningSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class FoundSandbox(RunningSandbox):
    """One whose outer process is known by its pid."""

    __slots__ = ("_bwrap", "_ended")

    def __init__(self, bwrap: int, ended: Callable[[int], None], *, tty: bool) -> None:
        """``ended`` gets a pidfd of its first process, which may still be exiting; -1: none."""
        super().__init__(-1, (), None, tty)
        self._bwrap = bwrap
        self._ended = ended
        self._read_info()  # while the outer process has it as its child

    def _read_info(self) -> bool:
        if self.pid == 0:
            outside = pid_namespace(self._bwrap)
            for child in children_of(self._bwrap):
                namespace = pid_namespace(child)
                if namespace != outside:
                    self.pid, self._namespace = child, namespace
        return self.pid != 0

    def _end(self) -> None:
        super()._end()
        self._ended(self._exiting())

    def _exiting(self) -> int:
        """A pidfd of the first process: it holds the lease until it is gone."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (OSError, ValueError):
            return -1  # gone, or never seen
        if pid_namespace(self.pid) in (self._namespace, 0):
            return pidfd
        os.close(pidfd)  # another process has its pid now
        return -1
