"""Close descriptors whose last close takes the kernel long, without waiting for it.

Two of them are on the way of every sandboxed command: the last reference to a mount namespace, with
which all its mounts are taken down, and the last to a directory that was removed, whose blocks some
file systems discard on the disk there and then (200 us and 100 us).
"""

from __future__ import annotations

import _queue
import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: How long the thread waits for the next: starting one takes longer than most closes.
_IDLE_SECONDS = 1.0

_lock = _thread.allocate_lock()
#: What is to be closed, and whether a thread is at work.
_waiting: _queue.SimpleQueue[int] = _queue.SimpleQueue()
_works = False


def close_later(fds: Iterable[int]) -> None:
    """Close descriptors in another thread."""
    global _works
    with _lock:
        for fd in fds:
            _waiting.put(fd)
        if _works:
            return
        _works = True
    try:
        _thread.start_new_thread(_close_all, ())
    except RuntimeError:  # no thread can be had
        _works = False
        _close_rest()


def _close_all() -> None:
    global _works
    while True:
        try:
            os.close(_waiting.get(timeout=_IDLE_SECONDS))
        except _queue.Empty:
            with _lock:
                if _waiting.empty():
                    _works = False
                    return


def _close_rest() -> None:
    while not _waiting.empty():
        os.close(_waiting.get())


def _after_fork() -> None:
    """Close what the thread has not closed yet: it is not in the new process."""
    global _lock, _works
    _lock, _works = _thread.allocate_lock(), False
    _close_rest()


os.register_at_fork(after_in_child=_after_fork)
