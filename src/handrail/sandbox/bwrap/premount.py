"""Mount paths before bwrap starts, when there are many of them.

bwrap reads the whole mount table for each mount it makes, and needs an fd for each: five hundred
repositories would take it seconds, if they fitted into a message at all.  ``premount_program.py``
mounts them all in a mount namespace in which bwrap then starts, and bwrap copies whole trees with
everything mounted in them.  That program takes a while to start, so a few paths are left to bwrap.
"""

from __future__ import annotations

import os
import sys

from handrail import memory_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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


def possible() -> bool:
    """Whether this machine allows it; tried once."""
    global _possible  # a property of the machine
    if _possible is None:
        _possible = _try()
    return _possible


def _try() -> bool:
    empty = memory_file.create("handrail-probe")
    try:
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, empty, 3),
        ]
        argv = (*words(3), b"/bin/true")
        pid = os.posix_spawn(argv[0], argv, _ENV, file_actions=actions)
        return os.waitpid(pid, 0)[1] == 0
    except OSError:
        return False
    finally:
        os.close(empty)
