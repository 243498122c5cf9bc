"""Starting a child that must have limits, or be in a group, before it becomes its program.

``posix_spawn`` can set neither.  So this child is forked, sets them on itself and then executes
its program: there is no moment in which the program runs without them, and the keeper itself is
never under them.  It costs about half a millisecond more, which only those children pay.  A fork
is safe here: the keeper has one thread.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterable, Mapping, Sequence


def start(
    program: bytes,
    argv: list[bytes],
    env: Mapping[bytes, bytes],
    actions: Sequence[tuple[int, ...] | tuple[int, int, bytes, int, int]],
    signals: Iterable[int],
    doors: Sequence[str],
    limits: Mapping[int, tuple[int, int]],
) -> int:
    """The pid of a child in a session of its own; raises OSError as ``posix_spawn`` does.

    ``doors`` are the files by which it enters its groups, ``limits`` what it sets by kind.
    """
    told, tell = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            _become(program, argv, env, actions, signals, doors, limits, tell)
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(tell)
    try:
        failed = os.read(told, 16)  # nothing, once the program is there
    finally:
        os.close(told)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return pid


def _become(
    program: bytes,
    argv: list[bytes],
    env: Mapping[bytes, bytes],
    actions: Sequence[tuple[int, ...] | tuple[int, int, bytes, int, int]],
    signals: Iterable[int],
    doors: Sequence[str],
    limits: Mapping[int, tuple[int, int]],
    tell: int,
) -> None:
    """What the child does; it never returns."""
    number = 0
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        for door in doors:
            _enter(door)
        for what, *rest in actions:
            if what == os.POSIX_SPAWN_OPEN:
                fd, path, flags, mode = rest
                opened = os.open(path, flags, mode)  # type: ignore[arg-type]
                os.dup2(opened, fd)  # type: ignore[arg-type]
                if opened != fd:
                    os.close(opened)
            else:
                os.dup2(*rest)
        for one in signals:
            signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for kind, value in limits.items():
            resource.setrlimit(kind, value)
        os.execve(program, argv, env)
    except OSError as error:
        number = error.errno or 0
    except MemoryError:
        number = 12  # ENOMEM: less address space than this step itself needs
    finally:
        os.write(tell, b"%d" % (number or 22))
        os._exit(127)


def _enter(door: str) -> None:
    fd = os.open(door, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def try_door(door: str) -> bool:
    """Whether a process of ours may enter this group."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _enter(door)
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
