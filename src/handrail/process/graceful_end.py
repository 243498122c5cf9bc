"""How a child is asked to end: a terminal hangs up, everybody gets TERM, then KILL.

The keeper does it (``keeper/deadlines.py``), so that it happens once and in time also when we are
killed meanwhile.  Here it is watched: the grace is over early when nobody is left who could use
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from handrail import process
from handrail.errors import KeeperLost
from handrail.keeper import messages
from handrail.keeper.deadlines import CAUSE_ASKED, CAUSE_TIME

if TYPE_CHECKING:
    from handrail.process.child import Child

log = logging.getLogger(__name__)

#: How much of the grace descendants still get once their leader has used its own.
STRAGGLER_SECONDS = 1.0
#: First and longest pause between two looks whether descendants have ended.
_LOOK_SECONDS = 0.005
_LOOK_SECONDS_MOST = 0.1


def asked(child: Child, seconds: float) -> messages.Due:
    """An end from now on."""
    at = int(time.monotonic() * 1000)
    return messages.Due(b"%d" % child.number, CAUSE_ASKED, at, int(seconds * 1000))


def timeout(child: Child) -> messages.Due | None:
    """The end when its time is over, if it has a limit."""
    if child.spec.timeout is None:
        return None
    at = int((child.started[1] + child.spec.timeout) * 1000)
    return messages.Due(b"%d" % child.number, CAUSE_TIME, at, int(process.TIMEOUT_GRACE * 1000))


async def see_out(child: Child, seconds: float) -> None:
    """Return when all have ended or the grace is over."""
    loop = child._loop
    deadline = loop.time() + seconds
    while child.running and (left := deadline - loop.time()) > 0:
        await child.changed(left)
    deadline = min(deadline, loop.time() + STRAGGLER_SECONDS)
    pause = _LOOK_SECONDS
    while (left := deadline - loop.time()) > 0:
        if child.number not in await child._launcher.orphans():
            break
        await asyncio.sleep(min(left, pause))
        pause = min(2 * pause, _LOOK_SECONDS_MOST)
    if child.running:
        log.info("process %r: did not end within its grace, killed", child.key[:80])


async def end_quietly(child: Child, seconds: float) -> None:
    """End it for nobody who waits."""
    with contextlib.suppress(KeeperLost):  # then its exit is reported as lost
        await child.end(seconds)
