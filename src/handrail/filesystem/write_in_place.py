"""Write new content into an existing file, by a program that outlives this process.

A file with several hard links keeps its inode, so its content has to be overwritten.  Done by this
process, a kill in the middle would leave the beginning of the new content before the end of the
old.  So a small program does it: it has the two fds, a session of its own, and goes on when the
process that started it is killed.  Content that one ``write`` puts in place as a whole is written
directly.  If no program can be started, this process writes.

What remains: an input/output error, a power loss, or a kill of that program too, can leave a
mixture.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys

from handrail import fault_points
from handrail.filesystem.content import copy_content
from handrail.filesystem.errors import os_error

#: The kernel copies a page at a time and checks for a fatal signal in between.
_AT_ONCE = os.sysconf("SC_PAGE_SIZE")
#: Fds of the program: content, target, and a pipe for its result.
_SOURCE, _TARGET, _ANSWER = 3, 4, 5
#: Standard library only, from memory: nothing is imported from where a command could write.
_PROGRAM = f"""
import os, sys
size = int(sys.argv[1])
try:
    at = 0
    while at < size:
        data = os.pread({_SOURCE}, 1 << 20, at)
        if not data:
            break
        view = memoryview(data)
        while view:
            done = os.pwrite({_TARGET}, view, at)
            at += done
            view = view[done:]
    if os.fstat({_TARGET}).st_size > size:
        os.ftruncate({_TARGET}, size)
    answer = 0
except OSError as error:
    answer = error.errno
os.write({_ANSWER}, b"%d" % answer)
"""


def pour(source: int, target: int) -> None:
    """Make the content of ``source`` that of ``target``; raises OSError.

    ``target`` has space for all of it: the caller has reserved the blocks.
    """
    size = os.fstat(source).st_size
    if size <= _AT_ONCE and os.fstat(target).st_size <= size:
        os.pwrite(target, os.pread(source, size, 0), 0)
        return
    answer = _by_program(source, target, size)
    if answer is None:  # not started, or ended by a signal: what it did is done again
        copy_content(source, target)
        if os.fstat(target).st_size > size:
            os.ftruncate(target, size)
    elif answer:
        raise os_error(answer)


def _by_program(source: int, target: int, size: int) -> int | None:
    """Have the program do it; the error number it met, 0 for none, None when it did not finish."""
    try:
        reader, writer = os.pipe2(os.O_CLOEXEC)
    except OSError:
        return None
    above: list[int] = []
    try:
        # Out of the way of the numbers under which the program finds them.
        for fd in (source, target, writer):
            above.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16))
        pid = _start(above, size)
    except OSError:
        pid = 0
    finally:
        for fd in (writer, *above):
            os.close(fd)
    if fault_points.armed:
        fault_points.point("pour.started")
    try:
        said = os.read(reader, 16) if pid else b""
    finally:
        os.close(reader)
        if pid:
            _reap(pid)
    return int(said) if said else None


def _start(descriptors: list[int], size: int) -> int:
    actions: list[tuple[int, ...]] = [
        (os.POSIX_SPAWN_DUP2, fd, number)
        for fd, number in zip(descriptors, (_SOURCE, _TARGET, _ANSWER), strict=True)
    ]
    words = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(size)]
    return os.posix_spawn(sys.executable, words, {}, file_actions=actions, setsid=True)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except OSError as error:
        if error.errno != errno.ECHILD:  # reaped by a program that ignores SIGCHLD
            raise
