"""Looking at the machine from outside: which processes live, what is open, what was left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.eventually import LIMIT

if os.getuid() != 0:
    # An ordinary user cannot look into servers and keepers; nor could these tests.
    os.environ.setdefault("HANDRAIL_INSPECT", "1")

PATH = os.environ.get("PATH", "/usr/bin:/bin")
#: How long processes of a test may take to end after it.
GRACE = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


# --- one process ---------------------------------------------------------------------------------


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


def kilobytes(pid: int, name: str) -> int:
    return int(status(pid)[name].split()[0])


def command_line(pid: int) -> str:
    """The pid and the argv of a process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
            return f"{pid} {words}".strip()
    except OSError:
        return str(pid)


def exists(pid: int) -> bool:
    """There is an entry in the process table, be it a zombie's."""
    return os.path.exists(f"/proc/{pid}")


def open_pidfd(pid: int) -> int | None:
    """A handle that stays with this very process; None if it is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def has_ended(pidfd: int, timeout: float = LIMIT) -> bool:
    """Wait for the end of a process."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))


def ended(pid: int, timeout: float = LIMIT) -> bool:
    """Wait for the end of a process, which may be another's child."""
    handle = open_pidfd(pid)
    if handle is None:
        return True
    try:
        return has_ended(handle, timeout)
    finally:
        os.close(handle)


async def until_ended(pid: int) -> None:
    """Wait for the end of a process without stopping the loop, on which a server may live."""
    assert await asyncio.to_thread(ended, pid), f"{pid} is still alive: {command_line(pid)}"


def alive(pid: int) -> bool:
    """It runs: it is neither gone nor a zombie."""
    return not ended(pid, 0.0)


def reaped(pid: int) -> bool:
    """A child of ours has ended; takes its status."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not exists(pid)


# --- several -------------------------------------------------------------------------------------


def children(pid: int | str = "self") -> set[int]:
    """Direct children, zombies too; none of a process that is gone."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError):
        for task in os.listdir(f"/proc/{pid}/task"):
            # A thread may have just ended.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    found.update(map(int, file.read().split()))
    return found


def keepers(pid: int | str = "self") -> list[int]:
    """The keepers among its children; it may have others, such as the bubblewrap of a template."""
    return [child for child in children(pid) if "keeper/__main__.py" in command_line(child)]


def keeper_pid(pid: int | str) -> int:
    """Its one keeper."""
    (keeper,) = keepers(pid)
    return keeper


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


@contextmanager
def reaping(ours: Callable[[], int]) -> Iterator[None]:
    """As the first process of a machine does: take the status of orphans that come to us.

    ``ours`` is the one child of our own that other code waits for.
    """
    over = threading.Event()
    before = children()

    def reap() -> None:
        while not over.wait(0.01):
            for pid in children() - before - {ours()}:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
def nothing_left(*, grace: float = GRACE, counted: bool = False) -> Iterator[None]:
    """Fail if a process is there at the end that was not there before.

    Orphans come to this process meanwhile, as to a subreaper, so a daemon that escaped from a test
    is found.  Processes may take ``grace`` seconds to end; with none, they must have been reaped.
    Where descriptors are ``counted``, none may be open that was not open before.
    """
    prctl = ctypes.CDLL(None).prctl
    reaper = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(reaper), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    fds, family = descriptors() if counted else {}, children()
    left = []
    try:
        yield
    finally:
        deadline = time.monotonic() + grace
        while found := children() - family:  # again: what hung below them comes to us now
            for pid in found:
                if not grace or not ended(pid, deadline - time.monotonic()):
                    left.append(command_line(pid) + " " + status(pid).get("Name", "?"))
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, reaper.value, 0, 0, 0)
    assert not left, f"processes left behind: {left}"
    if counted and descriptors().items() - fds.items():
        gc.collect()  # slow, so only when something may hang in a cycle
        open_now = descriptors().items() - fds.items()
        assert not open_now, f"descriptors left open: {sorted(open_now)}"
