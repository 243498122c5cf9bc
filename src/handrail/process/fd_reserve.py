"""Reserve the last fds of a server for connections, so that a full server can still be managed.

Without it no client could connect to end processes that use all other fds; and the next server,
which takes all of them over, would have none left for clients that resume.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource

#: So many, or an eighth where there are few.
_MOST = 24
#: Other threads may be looking for room at the same time, or were when we were forked.
_OTHERS = 16


def limit() -> int:
    """Descriptors of processes have numbers below this."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most - min(_MOST, most // 8)


def check_room(fd: int, count: int) -> None:
    """Refuse a start for which fds are missing: a child whose fds do not fit has to be killed.

    Numbers are given from below, so when a high one is free all above it are.  Raises OSError.
    """
    most = limit() - count
    try:
        found = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, most - _OTHERS)
        os.close(found)
    except (OSError, ValueError):
        found = most + 1
    if found > most:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def outside(fd: int) -> int:
    """The fd, unless it is one of the reserve: then it is closed and OSError is raised."""
    if fd >= limit():
        os.close(fd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return fd
