"""System calls without which nothing can be promised, tried before anything is started.

A kernel that is too old or the filter of a container may refuse them.  What can be done without
is done without (docs/decisions/0019); for these there is no other way that never signals a wrong
process.
"""

from __future__ import annotations

import functools
import os

from handrail import unnamed_file
from handrail.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # the C part: ``signal`` itself would import enum


@functools.cache
def check() -> None:
    """Try them once; raises UsageError with the call that is refused."""
    name = "pidfd_open"
    try:
        fd = os.pidfd_open(os.getpid())
        try:
            name = "pidfd_send_signal"
            _signal.pidfd_send_signal(fd, 0)
        finally:
            os.close(fd)
        name = "memfd_create"
        os.close(unnamed_file.create("handrail-probe"))
    except OSError as error:
        if error.errno in (23, 24):  # ENFILE, EMFILE: not refused
            return
        instead = (
            ", and no directory takes a file without a name instead"
            if name == "memfd_create"
            else ""
        )
        raise UsageError(
            f"the system call {name} is refused here ({error.strerror}){instead}; handrail cannot"
            " keep hold of its processes without it: allow it in the seccomp profile of the"
            " container, or use Linux 5.10 or later; nothing was started"
        ) from None
