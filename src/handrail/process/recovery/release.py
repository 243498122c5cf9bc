"""Leave a child to another server, give it to another keeper, and manage it without a keeper.

The other side of ``revive.py``: what one server releases, the next one takes over.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import time
from typing import TYPE_CHECKING

from handrail.keeper.timeout_and_grace import CAUSE_TIME, TIMED_OUT
from handrail.process.recovery import tag_kill

if TYPE_CHECKING:
    from handrail.process.child import Child

#: What the keeper holds of a sandboxed child beside its streams: where its calls are announced,
#: and those that are being answered.
LISTENER, CALLS = b"listener", b"calls"
#: How often the kernel is asked for the status of a child without a keeper, and how soon again.
_STATUS_TRIES = 100
_STATUS_SECONDS = 0.1
_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, eleven ids, exit status
_PIDFD_GET_INFO = 0xC000_FF0B | _INFO.size << 16
_INFO_EXIT = 1 << 3


def park(child: Child) -> None:
    """Stop using a child: another server takes over."""
    child.ending.park()
    child.output.park()
    child.stdin.park()
    if child.spec.running_sandbox is not None:
        child.spec.running_sandbox.park()
    if child.spec.network is not None:
        child.spec.network.park()


def holdings(child: Child) -> dict[bytes, int]:
    """The fds that a keeper holds of a child, by their names there."""
    held = {} if child.ending.pidfd < 0 else {b"lone": child.ending.pidfd}
    held |= child.output.holdings() | child.stdin.holdings()
    if child.spec.running_sandbox is not None:
        listener, calls = child.spec.running_sandbox.holdings
        held |= {name: fd for name, fd in ((LISTENER, listener), (CALLS, calls)) if fd >= 0}
    if child.spec.network is not None:
        held |= child.spec.network.holdings
    return held


def watch(child: Child) -> None:
    """Watch the pidfd of a child whose keeper is gone."""
    ending = child.ending
    if child.running and ending.pidfd >= 0 and ending.search is None:
        ending.watched = True
        child.loop.add_reader(ending.pidfd, _ended, child)


def _ended(child: Child) -> None:
    ending = child.ending
    child.loop.remove_reader(ending.pidfd)
    ending.watched = False
    if ending.ended_at is None:
        ending.ended_at = time.monotonic()
    if child.running:
        ending.search = child.loop.create_task(_find_status(child))


def _exit_status(pidfd: int) -> int | None:
    """The wait status of a process that is not our child; None while its parent has not taken it.

    Linux 6.15 and later keep it with the pidfd.  Where they do not, this raises OSError.
    """
    asked = bytearray(_INFO.size)
    struct.pack_into("<Q", asked, 0, _INFO_EXIT)
    fcntl.ioctl(pidfd, _PIDFD_GET_INFO, asked)
    fields = _INFO.unpack(asked)
    return int(fields[-1]) & 0xFFFF if fields[0] & _INFO_EXIT else None


async def _find_status(child: Child) -> None:
    """Ask the kernel for the exit status, before the new parent reaps the process."""
    if child.spec.running_sandbox is not None and child.mark is not None:
        tag_kill.end({child.mark})  # a sandbox ends with its leader
    try:
        for _ in range(_STATUS_TRIES):
            status = _exit_status(child.ending.pidfd)
            if status is not None:
                break
            await asyncio.sleep(_STATUS_SECONDS)
    except OSError:
        status = None
    due = child.ending.due
    timed = due is not None and due.cause == CAUSE_TIME
    if timed and await child.launcher.has_begun(child.number) and status is not None:
        status |= TIMED_OUT
    if not child.running:
        return
    if status is None:
        child.output.take_last()
        child.ending.exit_unknown()
    else:
        child.output.open_index()  # the keeper does not hear of it, so it is noted there
        child.ending.exited(status)


def kill(*children: Child) -> None:
    """Kill whole trees from here, because there is no keeper."""
    for child in children:
        child.ending.kill_leader()
    tag_kill.end({child.mark for child in children if child.mark is not None})
