"""Check that the kernel allows the system calls that handrail cannot do without.

A kernel that is too old or the filter of a container may refuse them.  What can be done without
is done without (docs/decisions/0019); for these there is no other way that never signals a wrong
process, knows every descendant, or has an event loop.  The same holds for a limit on the size of
files, which the kernel applies to files in memory too.
"""

from __future__ import annotations

import functools
import os
import resource

from handrail import memory_file
from handrail.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
else:
    import _signal  # the C part: ``signal`` itself would import enum

#: ENFILE, EMFILE: too many files are open, which says nothing about the call.
_SCARCE = (23, 24)
#: EPERM, EINVAL, ENOSYS: what filters answer.
_REFUSED = (1, 22, 38)


@functools.cache
def check() -> None:
    """Try each call once; raises UsageError that names the refused one."""
    for name, call in _CALLS.items():
        try:
            call()
        except OSError as error:
            if error.errno not in _SCARCE:
                raise UsageError(_sentence(name, error.strerror or "")) from None
    _check_file_size()


def _check_file_size() -> None:
    """Check the limit on file sizes: output and input are in large, mostly sparse files."""
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= most < memory_file.LARGEST:
        raise UsageError(
            f"files are limited to {most} bytes here (ulimit -f), and handrail keeps the output and"
            " input of its processes in such files in memory: start it with `ulimit -f unlimited`,"
            " and give the limit to the commands that need it (`limits` of process/start); nothing"
            " was started"
        )


def _sentence(name: str, reason: str) -> str:
    return (
        f"the system call {name} is refused here ({reason}); handrail cannot keep hold of its"
        " processes without it: allow it in the seccomp profile of the container, or use Linux"
        " 5.10 or later; nothing was started"
    )


def check_start(program: str, error: OSError) -> None:
    """Raise UsageError when the keeper could not be started because that is refused.

    Of other errors, as of too many processes, the cause may be over in a moment.
    """
    if error.errno in _REFUSED:
        raise UsageError(
            f"the keeper cannot be started with {program} ({error.strerror}); nothing was"
            " started.  If that program works otherwise, the seccomp profile of the container"
            " answers clone3 with another error than ENOSYS: change the profile"
        ) from None


def _pidfd_open() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _pidfd_send_signal() -> None:
    fd = os.pidfd_open(os.getpid())
    try:
        _signal.pidfd_send_signal(fd, 0)
    finally:
        os.close(fd)


def _memfd_create() -> None:
    os.close(memory_file.create("handrail-probe"))


def _eventfd() -> None:
    os.close(os.eventfd(0, os.EFD_CLOEXEC))


def _prlimit() -> None:
    resource.getrlimit(resource.RLIMIT_NOFILE)


_CALLS: dict[str, Callable[[], None]] = {
    "pidfd_open": _pidfd_open,
    "pidfd_send_signal": _pidfd_send_signal,
    "memfd_create": _memfd_create,
    "eventfd2": _eventfd,
    "prlimit64": _prlimit,
}
