"""What a server finds of the one before it: sessions, processes, their output and their exits."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from handrail.errors import KeeperLost
from handrail.process import keeper_program, notes
from handrail.process.launcher import Found, Launcher
from handrail.process.notes import Note
from handrail.process.revival import revive
from handrail.server.sessions import Sessions

log = logging.getLogger(__name__)


async def adopt(
    sessions: Sessions, launcher: Launcher, loop: asyncio.AbstractEventLoop
) -> tuple[int, int]:
    """Go on with everything the keeper holds; how many sessions and processes that were."""
    began = time.monotonic()
    kept, found = await launcher.found()
    sessions.revive(kept, began if launcher.lost_at is None else launcher.lost_at)
    count = 0
    for one, note in _newest(found, launcher):
        session = sessions.get(note.owner)
        if session is None:
            _end(one, launcher)
            continue
        try:
            child, closed_ago = revive(one, note, launcher, loop)
        except (OSError, ValueError) as error:
            # Its output cannot be read, so nobody could ever tell what it did.
            log.error("process %r cannot be taken over (%s); it is ended", note.key[:80], error)
            _end(one, launcher)
            continue
        session.table.adopt(child, closed_ago)
        count += 1
    if found:
        log.warning(
            "took over %d processes of %d sessions in %.0f ms",
            count,
            len(sessions),
            (time.monotonic() - began) * 1000,
        )
    return len(sessions), count


async def renew_keeper(launcher: Launcher) -> None:
    """Have the keeper become the program that belongs to us; it loses nothing by that."""
    reason = await asyncio.to_thread(keeper_program.check_keeper)
    if reason is None:
        try:
            await launcher.replace_keeper(*keeper_program.PROGRAM)
        except KeeperLost as error:
            reason = str(error)
    if reason is not None:
        log.error("the keeper stays the one it was: %s", reason)


def _newest(found: list[Found], launcher: Launcher) -> list[tuple[Found, Note]]:
    """Each process with its note.  An id may be there twice: forgotten, and not yet told so."""
    chosen: dict[tuple[str, str], tuple[Found, Note]] = {}
    for one in found:
        note = notes.decode(one.note)
        if note is None:
            _end(one, launcher)
            continue
        place = (note.owner, note.key)
        other = chosen.get(place)
        if other is not None:
            older, newer = sorted((other, (one, note)), key=lambda pair: pair[1].started)
            _end(older[0], launcher)
            chosen[place] = newer
        else:
            chosen[place] = (one, note)
    return list(chosen.values())


def _end(one: Found, launcher: Launcher) -> None:
    """Nobody can ask for this process any more: its session is gone."""
    for fd in one.fds.values():
        os.close(fd)
    launcher.discard(one.child, running=one.exit is None)
