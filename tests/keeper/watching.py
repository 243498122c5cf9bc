"""Looking at the machine from outside: who lives, what is open, and waiting for that to change.

Nothing here sleeps for a fixed time; every wait has a limit and a name.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

if os.getuid() != 0:
    # An ordinary user cannot look into servers and keepers; nor could these tests.
    os.environ.setdefault("HANDRAIL_INSPECT", "1")

#: Long enough for a machine that does three other things; nothing is measured by it.
LIMIT = 8.0
#: Times to try, one after the other, for a command that has to get somewhere before its time is
#: over: the first is enough unless the machine is busy.
PATIENCE = (0.3, 3.0, 20.0)
_PAUSE = 0.004
_PR_SET_CHILD_SUBREAPER = 36


def eventually(check: Callable[[], T], what: str = "", limit: float = LIMIT) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + limit
    while not (value := check()):
        assert time.monotonic() < deadline, f"still not: {what or check}"
        time.sleep(_PAUSE)
    return value


async def eventually_so(check: Callable[[], T], what: str = "", limit: float = LIMIT) -> T:
    """The same while the loop goes on."""
    deadline = time.monotonic() + limit
    while not (value := check()):
        assert time.monotonic() < deadline, f"still not: {what or check}"
        await asyncio.sleep(_PAUSE)
    return value


# --- processes -----------------------------------------------------------------------------------


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status by name; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/status") as file:
            pairs = (line.split(":", 1) for line in file)
            return {name: value.strip() for name, value in pairs}
    except OSError:
        return {}


def stat(pid: int) -> dict[str, int]:
    """What /proc/PID/stat says of groups, sessions and terminals."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    names = ("ppid", "pgrp", "session", "tty_nr", "tpgid")
    return dict(zip(names, map(int, fields[1:6]), strict=True))


def exists(pid: int) -> bool:
    """There is an entry in the process table, be it a zombie's."""
    return os.path.exists(f"/proc/{pid}")


def alive(pid: int) -> bool:
    return status(pid).get("State", "Z")[0] not in "ZX"


def kilobytes(pid: int, name: str) -> int:
    return int(status(pid)[name].split()[0])


def children(pid: int | str = "self") -> set[int]:
    """Direct children, zombies too."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found.update(map(int, file.read().split()))
        except FileNotFoundError:
            if pid != "self":
                raise
            # A thread of ours that has just ended.
    return found


def zombies(pid: int) -> set[int]:
    return {child for child in children(pid) if status(child).get("State", "")[:1] == "Z"}


def bearing(token: str) -> set[int]:
    """Every living process with this word among its arguments."""
    wanted = token.encode()
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    hit = wanted in file.read()
            except OSError:
                continue
            if hit and alive(int(name)):
                found.add(int(name))
    return found


def reaped(pid: int) -> bool:
    """A child of ours has ended; takes its status."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not exists(pid)


# --- descriptors ---------------------------------------------------------------------------------


def descriptors(pid: int | str = "self") -> dict[int, str]:
    """Open descriptors and what they point to."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            pass  # the one of the listing itself, or closed meanwhile
    return found


# --- nothing is left -----------------------------------------------------------------------------


@contextmanager
def nothing_left() -> Iterator[None]:
    """No process and no descriptor more than before.

    Whatever is orphaned meanwhile comes to us, as to a subreaper: a daemon that escaped from a
    test is found here and fails it.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    fds, family = descriptors(), children()
    try:
        yield
    finally:
        left: dict[int, str] = {}
        while found := children() - family:  # again: what hung below them comes to us now
            for pid in found:
                left[pid] = status(pid).get("Name", "?")
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert not left, f"processes left behind: {left}"
    open_now = descriptors().items() - fds.items()
    if open_now:
        gc.collect()  # slow, so only when something may hang in a cycle
        open_now = descriptors().items() - fds.items()
    assert not open_now, f"descriptors left open: {sorted(open_now)}"
