"""Start a child in its control groups without a fork of the interpreter.

A program of a few hundred bytes (``seccomp/stub.py``) is started by ``posix_spawn``, enters the
groups through files that the keeper has opened, and executes the child's program.  It tells what
went wrong through a line that the kernel closes when the program has begun: so the start fails with
the same error as any other.  With a filter the listener comes through the same line.
"""

from __future__ import annotations

import fcntl
import os
import socket

from handrail.keeper import fork
from handrail.keeper.seccomp import spawn as seccomp_spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


#: The number of the line of a child that is given its streams alone.
_USUAL = 3


def make_ready() -> None:
    """Make the program for children with one group, so that the first of them does not wait."""
    try:
        if seccomp_spawn.startable():
            seccomp_spawn.prelude_of(b"", _USUAL, 1)
    except OSError:
        pass  # asked for again with the first child


def start(
    program: bytes,
    argv: list[bytes],
    env: Mapping[bytes, bytes],
    actions: seccomp_spawn.Actions,
    signals: Iterable[int],
    before: fork.Before,
    starter: Callable[..., int],
) -> tuple[int, int]:
    """Start a child in a session of its own; returns its pid and its listener or -1.

    ``starter``: ``posix_spawn`` with the limits of ``before``.  Raises OSError as it does.
    """
    if not (program and argv and argv[0] and seccomp_spawn.startable()):
        return fork.start(program, argv, env, actions, signals, before)
    told, tell = _line(listens=bool(before.code))
    theirs = [tell]
    try:
        pid = -1
        try:
            # Above every number that the child is given, and known to the program.
            number = 1 + max((one[2] if len(one) == 3 else one[1] for one in actions), default=2)
            free = number + 1 + len(before.doors)
            prelude = seccomp_spawn.prelude_of(before.code, number, len(before.doors))
            for door in before.doors:
                theirs.append(os.open(door, os.O_WRONLY | os.O_CLOEXEC))
            for index, fd in enumerate(theirs):
                if fd < free:
                    theirs[index] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free)
                    os.close(fd)
            given = ((os.POSIX_SPAWN_DUP2, fd, number + n) for n, fd in enumerate(theirs))
            pid = starter(prelude, [program, *argv], env, (*actions, *given), signals)
        except OSError:
            pass  # perhaps only of this way: memory that may not be executed, one argument more
        finally:
            for fd in theirs:
                os.close(fd)
        if pid < 0:
            return fork.start(program, argv, env, actions, signals, before)
        if isinstance(told, int):
            said, listener = os.read(told, 4), -1
        else:
            said, listener = seccomp_spawn.receive(told)
            if listener >= 0:
                said = told.recv(4)
    finally:
        if isinstance(told, int):
            os.close(told)
        else:
            told.close()
    if said or (before.code and listener < 0):
        if listener >= 0:
            os.close(listener)
        os.waitpid(pid, 0)
        error = int.from_bytes(said, "little") or fork.EINVAL
        raise OSError(error, os.strerror(error))
    return pid, listener


def _line(*, listens: bool) -> tuple[int | socket.socket, int]:
    """A line from the child, and its end: one that takes descriptors, if it is to send one."""
    if not listens:
        return os.pipe2(os.O_CLOEXEC)
    told, tell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return told, tell.detach()
