"""Mount paths before bwrap starts, when there are many of them.

bwrap reads the whole mount table for each mount it makes, and needs an fd for each: five hundred
repositories would take it seconds, if they fitted into a message at all.  ``premount_program.py``
mounts them all in a mount namespace in which bwrap then starts, and bwrap copies whole trees with
everything mounted in them.  That program takes a while to start, so a few paths are left to bwrap.
"""

from __future__ import annotations

import fcntl
import os
import sys

from handrail import memory_file
from handrail.sandbox.bwrap.arguments import BEFORE_FD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What is done at a path: pin it by mounting it onto itself, make it read-only, cover it.
PIN, READ, EMPTY_DIRECTORY, EMPTY_FILE = b"p", b"r", b"d", b"f"
#: Behind one of these: nothing is done at a place that is gone.
IF_THERE = b"?"

Place = tuple[bytes, int, int, bytes]  # action, device, inode, real path

_ENV = {b"PATH": b"/usr/bin:/bin"}
_possible: bool | None = None


def request(places: Iterable[Place]) -> bytes:
    """What the program reads from its fd: the places, parents first."""
    return b"".join(b"%b %d %d %b\0" % place for place in places)


def words(number: int, *, lasting: bool = False) -> tuple[bytes, ...]:
    """The argv prefix that runs the program before another, with the request in an fd.

    ``lasting``: it outlives the process that starts it.
    """
    program = os.path.join(os.path.dirname(__file__), "premount_program.py")
    end = "alone" if lasting else "with-parent"
    argv = (sys.executable, "-I", "-S", "-B", program, str(number), end)
    return tuple(os.fsencode(word) for word in argv)


def places(text: bytes) -> Iterator[Place]:
    """The places of a request."""
    for record in text.split(b"\0")[:-1]:
        action, device, inode, path = record.split(b" ", 3)
        yield action, int(device), int(inode), path


def possible() -> bool:
    """Whether this machine allows it; tried once."""
    global _possible  # a property of the machine
    if _possible is None:
        from handrail.sandbox.bwrap import mounter  # few have that many

        # The first says the same in a tenth of the time.
        _possible = mounter.runs() or runs(b"", (*words(BEFORE_FD), b"/bin/true"))
    return _possible


def runs(text: bytes, argv: tuple[bytes, ...], more: Iterable[tuple[int, int]] = ()) -> bool:
    """Whether a program that has a text in an fd runs; fds that it has besides are closed."""
    given = memory_file.of("handrail-probe", text)
    more = list(more)
    try:
        passed = [(BEFORE_FD, given), *more]
        # Beyond all numbers, so that none is overwritten before it is copied.
        apart = [(wanted, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)) for wanted, fd in passed]
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            *((os.POSIX_SPAWN_DUP2, fd, wanted) for wanted, fd in apart),
        ]
        try:
            pid = os.posix_spawn(argv[0], argv, _ENV, file_actions=actions)
        finally:
            for _, fd in apart:
                os.close(fd)
    except OSError:
        return False
    finally:
        for _, fd in ((BEFORE_FD, given), *more):
            os.close(fd)
    return os.waitpid(pid, 0)[1] == 0
