"""The keeper's own descriptors: copies, the reserve, and those it must not have.

Every child costs some, so they run out first.  The last few go to no child: without them no
tree could be found and ended any more.
"""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Sequence

#: A walk has three open at a time: a directory or a file, and a pidfd.
RESERVE = 8
#: Descriptors that the table has room for from the start, at 8 bytes each.
_ROOM = 4096


def copies(fds: Sequence[int]) -> list[int]:
    """Duplicates of all of them, or OSError and none."""
    made: list[int] = []
    try:
        made.extend(map(os.dup, fds))
    except OSError:
        for fd in made:
            os.close(fd)
        raise
    return made


def make_room() -> None:
    """Have the kernel make the table large now: with several threads it waits for all processors
    before it replaces a table (some milliseconds, once for each doubling)."""
    try:
        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _ROOM - 1))
    except OSError:
        pass  # the limit is lower, so there is no more room to make


def only_reserve_left(fd: int) -> bool:
    """Whether a new fd is one of the last; the kernel gives the lowest free number."""
    return fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVE


def close_inherited(keep: set[int]) -> None:
    """Close fds that the starter left open by accident: every child would inherit them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself
