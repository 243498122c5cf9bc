"""Close descriptors whose last close takes the kernel long, without waiting for it.

Two of them are on the way of every sandboxed command: the last reference to a mount namespace, with
which all its mounts are taken down, and the last to a directory that was removed, whose blocks some
file systems discard on the disk there and then (200 us and 100 us).
"""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from queue import SimpleQueue

#: How long the thread waits for the next: starting one takes longer than most closes.
_IDLE_SECONDS = 1.0

_lock = _thread.allocate_lock()
#: What is to be closed, from the second call on, and whether a thread is at work.
_waiting: SimpleQueue[int] | None = None
_calls = 0
_works = False


def close_later(fds: Sequence[int]) -> None:
    """Close descriptors in another thread, but for the first: most programs run one command."""
    global _calls, _waiting, _works
    if not fds:
        return
    with _lock:
        _calls += 1
        if _calls == 1:
            for fd in fds:
                os.close(fd)
            return
        if _waiting is None:
            from _queue import SimpleQueue  # not for a program that runs one

            _waiting = SimpleQueue()
        for fd in fds:
            _waiting.put(fd)
        if _works:
            return
        _works = True
    try:
        _thread.start_new_thread(_close_all, (_waiting,))
    except RuntimeError:  # no thread can be had
        _works = False
        _close_rest(_waiting)


def _close_all(waiting: SimpleQueue[int]) -> None:
    from _queue import Empty

    global _works
    while True:
        try:
            os.close(waiting.get(timeout=_IDLE_SECONDS))
        except Empty:
            with _lock:
                if waiting.empty():
                    _works = False
                    return


def _close_rest(waiting: SimpleQueue[int]) -> None:
    while not waiting.empty():
        os.close(waiting.get())


def _after_fork() -> None:
    """Close what the thread has not closed yet: it is not in the new process."""
    global _lock, _works
    _lock, _works = _thread.allocate_lock(), False
    if _waiting is not None:
        _close_rest(_waiting)


os.register_at_fork(after_in_child=_after_fork)
