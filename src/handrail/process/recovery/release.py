"""Leaving a child to another server, giving it to another keeper, or being all it has.

The other side of ``revive.py``: what one server lets go of, the next takes up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

from handrail.keeper.deadlines import CAUSE_TIME, TIMED_OUT
from handrail.process import exit_and_close, exit_status
from handrail.process.output import event_record
from handrail.process.output.stream import STREAM_NAMES
from handrail.process.recovery import tag_kill
from handrail.process.spec import ExitInfo, ExitKind

if TYPE_CHECKING:
    from handrail.process.child import Child

#: What the keeper holds of a contained child beside its streams: where its calls are announced,
#: and those that are being answered.
LISTENER, CALLS = b"listener", b"calls"
#: How often the kernel is asked for the status of a child without a keeper, and how soon again.
_STATUS_TRIES = 100
_STATUS_SECONDS = 0.1


def park(child: Child) -> None:
    """Touch nothing of it any more; another server goes on with this child."""
    child._stop_timer()
    for task in (child._ending, child._seeking):
        if task is not None:
            task.cancel()
    for stream in child.streams:
        stream.stop_reading()
        if not stream.ended:
            stream.ended = True
            os.close(stream.fd)
            stream.fd = -1
    if child._pump is not None:
        child._pump.park(close=not child.spec.tty)
    if child.spec.containment is not None:
        child.spec.containment.park()


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
    if child.spec.containment is not None:
        listener, calls = child.spec.containment.holdings
        held |= {name: fd for name, fd in ((LISTENER, listener), (CALLS, calls)) if fd >= 0}
    return held


def watch(child: Child) -> None:
    """Its keeper is gone: nobody tells us of its exit, so we look for it."""
    if child.exit is None and child._pidfd >= 0 and child._seeking is None:
        child._loop.add_reader(child._pidfd, _ended, child)


def _ended(child: Child) -> None:
    child._loop.remove_reader(child._pidfd)
    if child.ended_at is None:
        child.ended_at = time.monotonic()
    if child.exit is None:
        child._seeking = child._loop.create_task(_seek(child))


async def _seek(child: Child) -> None:
    """Find out how it ended; whoever has inherited it may take its status any moment."""
    _end_sandbox(child)
    try:
        for _ in range(_STATUS_TRIES):
            status = exit_status.exit_status(child._pidfd)
            if status is not None:
                break
            await asyncio.sleep(_STATUS_SECONDS)
    except OSError:
        status = None
    due = child.due
    if (
        due is not None
        and due.cause == CAUSE_TIME
        and await child._launcher.has_begun(child.number)
    ):
        status = None if status is None else status | TIMED_OUT
    if child.exit is not None:
        return
    if status is None:
        exit_and_close.take_last(child)
        give_up(child)
    else:
        event_record.open_index(child)  # the keeper does not hear of it, so it is noted there
        child._exited(status)


def _end_sandbox(child: Child) -> None:
    """A sandbox ends with its leader, and there is no keeper to see to it."""
    mark = child._launcher.marks.get(child.number)
    if child.spec.containment is not None and mark is not None:
        tag_kill.end({mark})


def kill(*children: Child) -> None:
    """End whole families ourselves, for there is no keeper to do it."""
    for child in children:
        if child._pidfd >= 0:
            try:
                signal.pidfd_send_signal(child._pidfd, signal.SIGKILL)
                os.killpg(child.pid, signal.SIGKILL)  # the leader is not reused yet
            except OSError:
                pass
    marks = (child._launcher.marks.get(child.number) for child in children)
    tag_kill.end({mark for mark in marks if mark is not None})


def give_up(child: Child) -> None:
    """It has ended, and nobody can tell us its status any more: say that it is not known."""
    if child.exit is not None:
        return
    inside = child.spec.containment
    if inside is not None:
        inside.settle(child._loop, _nothing)
    exit_and_close.note_exit(child, ExitInfo(ExitKind.LOST, None))


def _nothing() -> None:
    """Nobody waits for it."""
