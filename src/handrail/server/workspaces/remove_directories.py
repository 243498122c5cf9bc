"""Remove the directories of used workspaces in which nothing was left.

By a program: ``rmdir`` waits for the disk where freed blocks are discarded (0.1 ms), and a thread
that does so beside a busy event loop takes the lock of the interpreter twice for each.  One
program for 64 workspaces costs less than two threads do for one.  It removes nothing but empty
directories; where some hold more, or there is no such program, threads look at each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Any

_PROGRAMS = ("/bin/rmdir", "/usr/bin/rmdir")
#: From so many on a program is started.
_FEW = 16
_INNER = ("root", "tmp")
_SHELL = stat.S_IFDIR | 0o700
_NULL = [
    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
    (os.POSIX_SPAWN_DUP2, 0, 1),
    (os.POSIX_SPAWN_DUP2, 0, 2),
]


async def removed(
    paths: list[str], most: int, in_thread: Callable[..., Awaitable[Any]]
) -> tuple[list[str], list[str]]:
    """Remove workspaces in which nothing was left, but for so many shells.

    Returns these, and the paths of workspaces that hold more.
    """
    if len(paths) >= _FEW and await _by_program(paths, most):
        return paths[:most], []
    found: tuple[list[str], list[str]] = await in_thread(_emptied, paths, most)
    return found


async def _by_program(paths: list[str], most: int) -> bool:
    """Whether a program has removed everything; ``most`` shells stay."""
    words = [f"{path}/{name}" for path in paths for name in _INNER] + paths[most:]
    program = next((one for one in _PROGRAMS if os.access(one, os.X_OK)), None)
    if program is None:
        return False
    pidfd = -1
    try:
        pid = _start(program, ["rmdir", "--", *words])
        try:
            pidfd = os.pidfd_open(pid)
            await _ended(pidfd)
        finally:
            status = _status(pid)
    except OSError:
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return status == 0


def _start(program: str, argv: list[str]) -> int:
    return os.posix_spawn(program, argv, {}, file_actions=_NULL, setsid=True)


def _status(pid: int) -> int:
    """The status of the program, which has ended, or is waited for when the server stops."""
    return os.waitpid(pid, 0)[1]


async def _ended(pidfd: int) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.add_reader(pidfd, lambda: None if over.done() else over.set_result(None))
    try:
        await over
    finally:
        loop.remove_reader(pidfd)


def _emptied(paths: list[str], most: int) -> tuple[list[str], list[str]]:
    shells: list[str] = []
    others: list[str] = []
    for path in paths:
        try:
            for name in _INNER:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(f"{path}/{name}")
            if len(shells) < most and is_shell(path):
                shells.append(path)
            else:
                os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError:
            others.append(path)
    return shells, others


def is_shell(path: str) -> bool:
    """Whether a directory is as it was made, before there was anything in it."""
    try:
        return os.stat(path).st_mode == _SHELL and not os.listdir(path)
    except OSError:
        return False
