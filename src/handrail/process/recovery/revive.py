"""Restore a child of a previous server, with its output and input.

The order is the order of the facts: what was numbered comes from the index; what lies in a spool
behind the last number, or in the staging pipe of a terminal, was told to no client and is numbered
now; what is still in the pipe is read as ever.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace

from handrail.process.child import Child
from handrail.process.exit_status import ExitInfo, ExitKind, Usage
from handrail.process.keeper_client.answers import Found, Spawned
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.output.event_index import EVICTED, HELD_OPEN, LOST, TERMINATED
from handrail.process.recovery import release
from handrail.process.recovery.start_note import Note
from handrail.process.spec import NetworkHandle, ProcessSpec

#: What the keeper holds of a managed network: listener, resolver and namespace.
NETWORK_NAMES = (b"network", b"resolver", b"netns")

#: Makes a spec know the sandbox its process is in: pid, listener and calls (-1: none) are given,
#: the descriptors are taken.
Resandbox = Callable[[ProcessSpec, Found, int, int], ProcessSpec]
#: Makes its managed network anew from the note of it and what the keeper holds, which is taken.
Renetwork = Callable[[str, int, dict[bytes, int]], NetworkHandle]


def revive(
    found: Found,
    note: Note,
    launcher: Launcher,
    loop: asyncio.AbstractEventLoop,
    resandbox: Resandbox | None = None,
    renetwork: Renetwork | None = None,
) -> tuple[Child, float | None]:
    """The child, and how long it has been closed or None.  Owns the descriptors."""
    held = dict(found.fds)
    spec = note.spec()
    if note.network is not None and found.exit is None and renetwork is not None:
        network = {name: held.pop(name) for name in NETWORK_NAMES if name in held}
        spec = replace(spec, network=renetwork(note.network, found.child, network))
    if spec.sandboxed and found.exit is None and resandbox is not None:
        listener, calls = (held.pop(name, -1) for name in (release.LISTENER, release.CALLS))
        spec = resandbox(spec, found, listener, calls)
    names = (b"pty",) if spec.tty else (b"stdout", b"stderr", b"stdin")
    fds = tuple(held.pop(name, -1) for name in names)
    lone = b"lone" in held  # its keeper has died and does not tell us of its exit
    pidfd = held.pop(b"lone" if lone else b"pidfd", -1)
    spawned = Spawned(found.child, found.pid, pidfd, fds)
    child = Child(note.key, spec, spawned, launcher, loop, None)
    if spec.network is not None:
        spec.network.began(child)
    child.started = (note.started_at, note.started)
    ending = child.ending
    ending.ended_at, ending.asked, ending.killed = found.ended, found.asked, found.killed
    ending.terminated = found.killed or found.asked is not None
    child.output.attach(held)
    numbered = child.output.recall()
    _recall_end(child, found)
    child.output.number_rest(numbered)
    if b"input" in held:
        child.stdin.revive(held.pop(b"input"), exited=not child.running)
    for fd in held.values():
        os.close(fd)
    if lone:
        release.watch(child)
    return child, _closed_ago(child)


def _recall_end(child: Child, found: Found) -> None:
    """Restore what is recorded of its end."""
    ending, index = child.ending, child.output.index
    if index is None:
        return
    ends = index.ends
    ending.terminated |= bool(ends.flags & TERMINATED)
    ending.held_open = bool(ends.flags & HELD_OPEN)
    if ends.flags & EVICTED:
        ending.cause = ExitKind.LIMIT_EXCEEDED
    if ends.exit_seq:
        ending.status = ends.status
        if ends.status == LOST:
            ending.exit = ExitInfo(ExitKind.LOST, None)
        else:
            used = (found.exit or ())[1:] or (None, None, None)
            ending.exit = ending.read_status(ends.status, Usage(ends.wall_ms, *used))
        ending.close_pidfd()


def _closed_ago(child: Child) -> float | None:
    index = child.output.index
    if index is None or not index.ends.closed_seq:
        return None
    ago = max(0.0, time.monotonic() - index.ends.closed_at)
    if not child.ending.held_open:
        child.output.end()
        child.launcher.release(child.number)
    child.shrink()
    return ago
