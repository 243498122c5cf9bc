"""How a child is asked to end: a terminal hangs up, everybody gets TERM, then KILL.

The whole tree is asked each time.  The grace is over early when nobody is left who could use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING

from handrail.errors import KeeperLost
from handrail.process.spec import ExitKind

if TYPE_CHECKING:
    from handrail.process.child import Child

log = logging.getLogger(__name__)

#: What a process that ran out of time gets between TERM and KILL.
TIMEOUT_GRACE = 2.0
#: A terminal hangs up this long before its processes are asked to end, within a quarter of
#: the grace.
HANGUP_SECONDS = 0.2
#: How much of the grace descendants still get once their leader has used its own.
STRAGGLER_SECONDS = 1.0
#: First and longest pause between two looks whether descendants have ended.
_LOOK_SECONDS = 0.005
_LOOK_SECONDS_MOST = 0.1


async def ask(child: Child, grace: float) -> None:
    """HUP for a terminal, then TERM; returns when all have ended or the grace is over."""
    loop = child._loop
    log.info("process %r: asked to end, with %g s of grace", child.key[:80], grace)
    deadline = loop.time() + grace
    if child.spec.tty and child.running:
        await child.signal(signal.SIGHUP, tree=True)
        await _until_exit(child, loop.time() + min(HANGUP_SECONDS, grace / 4))
    await child.signal(signal.SIGTERM, tree=True)
    await _until_exit(child, deadline)
    deadline = min(deadline, loop.time() + STRAGGLER_SECONDS)
    pause = _LOOK_SECONDS
    while (left := deadline - loop.time()) > 0:
        if child.number not in await child._launcher.orphans():
            break
        await asyncio.sleep(min(left, pause))
        pause = min(2 * pause, _LOOK_SECONDS_MOST)
    if child.running:
        log.info("process %r: did not end within its grace, killed", child.key[:80])


async def _until_exit(child: Child, deadline: float) -> None:
    while child.running and (left := deadline - child._loop.time()) > 0:
        await child.changed(left)


def rest(child: Child) -> float:
    """For one that a server before us was about to end when it died."""
    if child._cause is ExitKind.TIMED_OUT and child.spec.timeout is not None:
        return max(0.0, child.spec.timeout + TIMEOUT_GRACE - child.age)
    # How much it had is not known; one that was to be killed at once is dead already.
    return TIMEOUT_GRACE if child._cause is None else 0.0


async def end_quietly(child: Child, grace: float) -> None:
    """End it for nobody who waits."""
    with contextlib.suppress(KeeperLost):  # then its exit is reported as lost
        await child.end(grace)
