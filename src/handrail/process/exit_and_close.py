"""The end of a child: exited when its status is known, closed when its streams have ended.

Whatever is in the pipes when the exit becomes known is numbered first; ``closed`` follows when
every stream has ended, in this order, however the news come in.  A descendant that holds a
stream open delays the close by ``DRAIN_SECONDS`` at most: then it is reported as held open, and
what comes later is thrown away.  Unless somebody wants that too: one that asked to lose nothing
(``on_lag``), or has a reader in this program, is closed by the end of its streams alone.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from handrail import fault_points
from handrail.process.output import event_record
from handrail.process.output.event_index import HELD_OPEN, LOST
from handrail.process.output.stream import Stream
from handrail.process.spec import ExitInfo, Usage, exit_from_status

if TYPE_CHECKING:
    from handrail.process.child import Child

#: Steps taken from each pipe when the exit is known, so that what was written before it is
#: numbered before it; bounded, for a grandchild may go on writing.
_LAST_STEPS = 18
#: How long streams may stay open after the exit before the process is closed without their end.
DRAIN_SECONDS = 2.0

NO_TAGS: dict[str, bytes] = {}
_NO_STREAMS: list[Stream] = []


def reaped(
    child: Child,
    status: int,
    user_ms: int | None = None,
    system_ms: int | None = None,
    rss: int | None = None,
) -> None:
    """Its status is known, and everybody of its sandbox has ended; None: nobody has counted."""
    if child._discarded:
        return
    usage = Usage(int(child.age * 1000), user_ms, system_ms, rss)
    take_last(child)
    info = exit_from_status(
        status,
        terminated=child.terminated,
        usage=usage,
        cause=child._cause,
        contained=child.spec.contained,
    )
    note_exit(child, info, status)


def take_last(child: Child) -> None:
    """Number what was written before the exit before the exit."""
    if child.sink is None or child.sink.ready or child._backlog is not None:
        for stream in child.streams:
            for _ in range(_LAST_STEPS):
                if child._window is not None and not child._window.open:
                    break
                if stream.ended or not stream.take():
                    break


def note_exit(child: Child, info: ExitInfo, status: int = LOST) -> None:
    """Number the exit, note it for the next server, tell it."""
    child.exit = info
    if child.spec.judge is not None:
        inside = child.spec.containment
        seen = () if inside is None else inside.denials
        child.verdict = child.spec.judge(info.code, _texts(child) if info.code else [], seen)
    child.status = status
    child._stop_timer()
    if child._pidfd >= 0:
        child._loop.remove_reader(child._pidfd)
        os.close(child._pidfd)
        child._pidfd = -1
    if child._pump is not None:
        if child.terminated:
            child._pump.close()  # refuses who still waits
        else:
            # As on the wire: a write after the exit is accepted, and its bytes vanish.
            child._pump.abandon()
    seq = child.log.exited()
    # Without an index its number is the first there is, and the close has the second.
    # One that is lost has to be remembered as such.
    if child._index is not None or status == LOST or not all(s.ended for s in child.streams):
        index = event_record.open_index(child)
        if index is not None:
            index.exited(seq, status, int(child.age * 1000))
    if fault_points.armed:
        fault_points.point("exit.numbered")
    if child.sink is not None and not child._is_behind:
        child.sink.exited(child, seq)
    child._wake()
    child._counted()
    maybe_closed(child)
    drain_later(child)


def drain_later(child: Child) -> None:
    """Exited and not closed yet: give the streams their time."""
    if not child.closed and child._window is None and not child.spec.waits_for_streams:
        child._timer = child._loop.call_later(DRAIN_SECONDS, _drained, child)


def _drained(child: Child) -> None:
    """The time for the streams to end is over: close without that."""
    waits = child.sink is not None and not child.sink.ready and child._backlog is None
    for stream in child.streams:
        for _ in range(_LAST_STEPS):
            # What is in the pipe now was written in time.
            if waits or stream.ended or not stream.take():
                break
    if child.closed:
        return
    # What there is no room for is output all the same, and nobody holds its stream open.
    if waits or child.blocked or any(stream.lacks_room for stream in child.streams):
        child._timer = child._loop.call_later(DRAIN_SECONDS, _drained, child)
        return
    child.held_open = not all(stream.ended for stream in child.streams)
    _close(child)


def _texts(child: Child) -> list[bytes]:
    """What is retained of the output: each stream, and all as it came."""
    streams: list[list[bytes]] = [[], [], []]
    both: list[bytes] = []
    for chunk in child.log.read(0, None).chunks:
        data = child.read_chunk(chunk)
        streams[chunk.stream].append(data)
        both.append(data)
    return [b"".join(parts) for parts in (*streams, both) if parts]


def maybe_closed(child: Child) -> None:
    """A stream has ended, or the exit is known: it may have been the last."""
    if child.exit is None or not all(s.ended for s in child.streams):
        return
    if not child.closed:
        _close(child)
    elif child.held_open:
        child._launcher.release(child.number)  # now the last of them has let go


def _close(child: Child) -> None:
    child._stop_timer()
    seq = child.log.closed()
    child.closed_at = child._loop.time()
    if child._index is not None:
        if child.held_open:
            child._index.mark(HELD_OPEN)
        child._index.closed(seq, time.monotonic())
    if fault_points.armed:
        fault_points.point("close.numbered")
    if child._pump is not None:
        child._pump.close()
    if not child.held_open:
        child._launcher.release(child.number)
    if child.sink is not None and not child._is_behind:
        child.sink.closed(child, seq)
    child._wake()
    shrink(child)
    if child.on_closed is not None:
        on_closed, child.on_closed = child.on_closed, None
        on_closed(child)


def shrink(child: Child) -> None:
    """What is only kept for late readers is kept small; there may be very many."""
    child.spec = child.spec.without_env()
    if not child._is_behind:
        child.tags = NO_TAGS
    child._pump = None
    child.pid = 0
    child._started = 0.0
    event_record.close_index(child)
    if all(stream.spool is None and stream.ended for stream in child.streams):
        child.streams = _NO_STREAMS
    child.log = child.log.settled()


def discard(child: Child, *, forget: bool = True) -> None:
    """Let go of everything, retained output too.  The child must have ended or been killed.

    Without ``forget`` the keeper goes on knowing its family, so that it can be ended.
    """
    child._discarded = True
    if child.running and child.spec.containment is not None:
        child.spec.containment.settle(child._loop, _nothing)
    for stream in child.streams:
        if not stream.ended:
            stream.end()
        stream.drop()
    if child._pump is not None:
        child._pump.close()
    event_record.close_index(child)
    child._stop_timer()
    for task in (child._ending, child._seeking):
        if task is not None:
            task.cancel()
    if child._pidfd >= 0:
        child._loop.remove_reader(child._pidfd)
        os.close(child._pidfd)
        child._pidfd = -1
    if forget:
        child._launcher.forget(child.number)
    child.sink = None
    child._counted()  # discarded before its exit was known
    child._wake()


def _nothing() -> None:
    """Nobody waits for it."""
