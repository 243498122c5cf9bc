"""Processes and descriptors: who is alive, who is left, and gates for children to wait at.

There are no sleeps here; whoever waits, waits for a pidfd, a descriptor or a turn of the loop,
and never longer than ``WAIT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT = 30.0
PATH = os.environ.get("PATH", "/usr/bin:/bin")
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def nothing_left() -> Iterator[None]:
    """Orphans come to us meanwhile; at the end there is no child that was not there before."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(children(os.getpid()))
    try:
        yield
    finally:
        left = []
        deadline = time.monotonic() + 10.0
        while pids := set(children(os.getpid())) - before:
            for pid in pids:
                if not ended(pid, deadline - time.monotonic()):
                    left.append(command_line(pid))
                    os.kill(pid, signal.SIGKILL)
                    ended(pid, WAIT)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert not left, f"left behind: {left}"


@contextmanager
def reaping(ours: Callable[[], int]) -> Iterator[None]:
    """As the first process of a machine does: take the status of orphans that come to us.

    ``ours`` is the one child of our own that somebody else waits for.
    """
    over = threading.Event()
    before = set(children(os.getpid()))

    def reap() -> None:
        while not over.wait(0.01):
            for pid in set(children(os.getpid())) - before - {ours()}:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def children(pid: int) -> list[int]:
    """The direct children of a process, the dead that wait for us too."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    return found


def ended(pid: int, timeout: float = WAIT) -> bool:
    """Wait for the end of a process that is ours or somebody's."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], max(0.0, timeout))[0])
    finally:
        os.close(handle)


async def until_ended(pid: int) -> None:
    """The same without stopping the loop, which a server may live on."""
    assert await asyncio.to_thread(ended, pid), f"{pid} is still alive: {command_line(pid)}"


def alive(pid: int) -> bool:
    return not ended(pid, 0.0)


def command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
            return f"{pid} {words}".strip()
    except OSError:
        return str(pid)


def descriptors() -> dict[str, str]:
    """Our open descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.endswith("/fd"):  # the listing itself
                found[name] = target
    return found


# --- gates ------------------------------------------------------------------------------------


class Gate:
    """A named pipe that children wait at: ``read line < path`` goes on when it is opened."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open(self, times: int = 1) -> None:
        os.write(self._fd, b"go\n" * times)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def gate(path: Path) -> Iterator[Gate]:
    made = Gate(path)
    try:
        yield made
    finally:
        made.close()


async def spin(condition: Callable[[], Any]) -> None:
    """Turn the loop until something is so: for what a server does without telling anybody."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110 (that is what it is for)
            await asyncio.sleep(0)
