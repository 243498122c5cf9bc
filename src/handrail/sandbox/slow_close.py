"""Close descriptors whose last close takes the kernel long, without waiting for it.

Two of them are on the way of every sandboxed command: the last reference to a mount namespace, with
which all its mounts are taken down, and the last to a directory that was removed, whose blocks some
file systems discard on the disk there and then (200 us and 100 us).

Nothing is imported later: a program may have laid down the right to read its modules by then.
"""

from __future__ import annotations

import _thread
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: How long the thread waits for the next: starting one takes longer than most closes.
_IDLE_SECONDS = 1.0
#: How long it gathers them: each time it wakes, other threads of the program stop.
_GATHER_SECONDS = 0.01

_lock = _thread.allocate_lock()
#: Held while nothing is to be closed.
_idle = _thread.allocate_lock()
_waiting: list[int] = []
_used = False
#: Whether a thread is at work.
_works = False


def close_later(fds: Sequence[int]) -> None:
    """Close descriptors in another thread, but for the first: most programs run one command."""
    global _used, _works
    if not fds:
        return
    if not _used:
        _used = True
        _close(fds)
        return
    with _lock:
        _waiting.extend(fds)
        if _idle.locked():
            _idle.release()
        if _works:
            return
        _works = True
    try:
        _thread.start_new_thread(_close_all, ())
    except RuntimeError:  # no thread can be had
        _works = False
        _close(_taken())


def _close_all() -> None:
    global _works
    while True:
        woken = _idle.acquire(timeout=_IDLE_SECONDS)
        while fds := _taken():
            _close(fds)
            time.sleep(_GATHER_SECONDS)
        if woken:
            continue
        with _lock:
            if not _waiting:
                _works = False
                return


def _taken() -> list[int]:
    with _lock:
        fds = _waiting[:]
        _waiting.clear()
    return fds


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass  # the thread goes on with the others


def _after_fork() -> None:
    """Close what the thread has not closed yet: it is not in the new process."""
    global _lock, _idle, _works
    _lock, _idle, _works = _thread.allocate_lock(), _thread.allocate_lock(), False
    _close(_taken())


os.register_at_fork(after_in_child=_after_fork)
