"""Leaving a child to another server, giving it to another keeper, or being all it has.

The other side of ``revival.py``: what one server lets go of, the next takes up.
"""

from __future__ import annotations

import os

from handrail.process import pidfd
from handrail.process.child import STREAM_NAMES, Child
from handrail.process.spec import ExitInfo, ExitKind

#: How often the kernel is asked for the status of a child without a keeper, and how soon again.
_STATUS_TRIES = 100
_STATUS_SECONDS = 0.1


def park(child: Child) -> None:
    """Touch nothing of it any more; another server goes on with this child."""
    child._stop_timer()
    if child._ending is not None:
        child._ending.cancel()
    for stream in child.streams:
        child._stop_reading(stream)
        if not stream.ended:
            stream.ended = True
            os.close(stream.fd)
            stream.fd = -1
    if child._pump is not None:
        child._pump.park(close=not child.spec.tty)


def holdings(child: Child) -> dict[bytes, int]:
    """Everything a keeper holds of a child, by the names it has there."""
    held = {} if child._pidfd < 0 else {b"lone": child._pidfd}
    for stream in child.streams:
        name = STREAM_NAMES[stream.index].encode()
        if not stream.ended:
            held[name] = stream.fd
        if stream.spool is not None:
            held[b"spool." + name] = stream.spool.fd
        if stream.staging is not None:
            held[b"staging"] = stream.staging.read_end
    if child._index is not None and child._index.own_fd is not None:
        held[b"events"] = child._index.own_fd
    if child._pump is not None:
        held |= child._pump.holdings(tty=child.spec.tty)
    return held


def watch(child: Child) -> None:
    """Its keeper is gone: nobody tells us of its exit, so we look for it."""
    if child.exit is None and child._pidfd >= 0:
        child._loop.add_reader(child._pidfd, _ended, child, _STATUS_TRIES)


def _ended(child: Child, tries: int) -> None:
    if child.exit is not None or child._pidfd < 0:
        return
    child._loop.remove_reader(child._pidfd)
    try:
        status = pidfd.exit_status(child._pidfd)
    except OSError:
        status, tries = None, 0
    if status is not None:
        child._exited(status, 0, 0, 0)
    elif tries:  # whoever has inherited it may take its status any moment
        child._loop.call_later(_STATUS_SECONDS, _ended, child, tries - 1)
    else:
        child._take_last()
        child._note_exit(ExitInfo(ExitKind.LOST, None))
