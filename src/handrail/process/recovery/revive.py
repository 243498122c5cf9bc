"""A child of a server that is gone, with everything it has said and was sent.

The order is the order of the facts: what was numbered comes from the index; what lies in a spool
behind the last number, or in the staging pipe of a terminal, was told to nobody and is numbered
now; what is still in the pipe is read as ever.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from handrail.process import exit_and_close
from handrail.process.child import Child
from handrail.process.keeper_client.launcher import Found, Launcher, Spawned
from handrail.process.output.event_index import EVICTED, HELD_OPEN, LOST, TERMINATED, EventIndex
from handrail.process.output.spool import INDEX_AT, STEP, Spool, Staging
from handrail.process.output.stream import PTY, STREAM_NAMES, Stream
from handrail.process.recovery import release
from handrail.process.recovery.start_note import Note
from handrail.process.spec import ExitInfo, ExitKind, ProcessSpec, Usage, exit_from_status
from handrail.process.stdin.log import StdinLog

#: Makes a spec know the sandbox its process is in: pid, listener and calls (-1: none) are given,
#: the descriptors are taken.
Contain = Callable[[ProcessSpec, Found, int, int], ProcessSpec]


def revive(
    found: Found,
    note: Note,
    launcher: Launcher,
    loop: asyncio.AbstractEventLoop,
    contain: Contain | None = None,
) -> tuple[Child, float | None]:
    """The child, and how long it has been closed or None.  Takes the descriptors."""
    held = dict(found.fds)
    spec = note.spec()
    if spec.contained and found.exit is None and contain is not None:
        listener, calls = (held.pop(name, -1) for name in (release.LISTENER, release.CALLS))
        spec = contain(spec, found, listener, calls)
    names = (b"pty",) if spec.tty else (b"stdout", b"stderr", b"stdin")
    fds = tuple(held.pop(name, -1) for name in names)
    lone = b"lone" in held  # its keeper has died, and nobody tells us of its exit
    pidfd = held.pop(b"lone" if lone else b"pidfd", -1)
    spawned = Spawned(found.child, found.pid, pidfd, fds)
    child = Child(note.key, spec, spawned, launcher, loop, None)
    child.started = (note.started_at, note.started)
    child.ended_at, child._due, child.killed = found.ended, found.asked, found.killed
    child.terminated = found.killed or found.asked is not None
    for stream in child.streams:
        stream.ended = stream.fd < 0
        _attach(stream, held)
    child._index = _index(child, held)
    numbered: dict[int, int] = {}
    if child._index is not None:
        numbered = _recall(child, child._index, found)
    for stream in child.streams:
        _number_the_rest(child, stream, numbered.get(stream.index, 0))
    if b"input" in held:
        log, writes = StdinLog.attach(held.pop(b"input"))
        child.ledger.recall(writes)
        if child._pump is not None:
            if child.exit is not None:
                child._pump.abandon()
            child._pump.revive(log)
        else:
            log.close()
    for fd in held.values():
        os.close(fd)
    if lone:
        release.watch(child)
    return child, _closed_ago(child)


def _attach(stream: Stream, held: dict[bytes, int]) -> None:
    spool = held.pop(b"spool." + STREAM_NAMES[stream.index].encode(), -1)
    if spool >= 0:
        stream.spool = Spool.attach(spool)
    if stream.index == PTY and b"staging" in held:
        stream.staging = Staging.attach(held.pop(b"staging"))


def _index(child: Child, held: dict[bytes, int]) -> EventIndex | None:
    if b"events" in held:
        return EventIndex.find(held.pop(b"events"), 0)
    for stream in child.streams:
        if stream.spool is not None:
            found = EventIndex.find(stream.spool.fd, INDEX_AT)
            if found is not None:
                return found
    return None


def _recall(child: Child, index: EventIndex, found: Found) -> dict[int, int]:
    """The numbers, and the exit if it has one; says how far each stream is numbered."""
    ends = index.ends
    events = index.chunks()
    child.log.restore(events, ends.exit_seq or None, ends.closed_seq or None)
    child.terminated |= bool(ends.flags & TERMINATED)
    child.held_open = bool(ends.flags & HELD_OPEN)
    if ends.flags & EVICTED:
        child._cause = ExitKind.EVICTED
    if ends.exit_seq:
        child.exit = _exit(child, ends.status, ends.wall_ms, found)
        child.status = ends.status
        if child._pidfd >= 0:
            os.close(child._pidfd)
            child._pidfd = -1
    return {event.stream: event.start + event.size for event in events}


def _exit(child: Child, status: int, wall_ms: int, found: Found) -> ExitInfo:
    if status == LOST:
        return ExitInfo(ExitKind.LOST, None)
    used = (found.exit or ())[1:] or (None, None, None)
    usage = Usage(wall_ms, *used)
    return exit_from_status(
        status,
        terminated=child.terminated,
        usage=usage,
        cause=child._cause,
        contained=child.spec.contained,
    )


def _number_the_rest(child: Child, stream: Stream, start: int) -> None:
    """Number what was taken from the pipe and told to nobody."""
    spool = stream.spool
    if spool is None:
        return
    while start < spool.position:
        size = min(STEP, spool.position - start)
        child._publish(stream.index, start, size)
        start += size
    staging = stream.staging
    while staging is not None and staging.held:
        start = spool.position
        moved = staging.drain(spool)
        child._publish(stream.index, start, moved)
    stream.numbered = spool.position


def _closed_ago(child: Child) -> float | None:
    index = child._index
    if index is None or not index.ends.closed_seq:
        return None
    ago = max(0.0, time.monotonic() - index.ends.closed_at)
    if not child.held_open:
        for stream in child.streams:
            if not stream.ended:
                stream.end()
        child._launcher.release(child.number)
    exit_and_close.shrink(child)
    return ago
