"""The last descriptors of a server go to no process: they are for connections, answers and ends.

Without them no client could connect to end what takes all the others; and the next server, which is
handed every one of them, would have none left for those who want to resume.
"""

from __future__ import annotations

import errno
import os
import resource

#: So many, or an eighth where there are few.
_MOST = 24


def limit() -> int:
    """Descriptors of processes have numbers below this."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most - min(_MOST, most // 8)


def outside(fd: int) -> int:
    """The descriptor, if it is none of the last; else it is closed, and OSError is raised."""
    if fd >= limit():
        os.close(fd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return fd
