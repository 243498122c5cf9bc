"""Adopts what the previous server left: sessions, processes, their output and their exits."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from handrail.errors import KeeperLost, UsageError
from handrail.process.keeper_client import start_keeper
from handrail.process.keeper_client.answers import Found
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.recovery import release, start_note
from handrail.process.recovery.revive import revive
from handrail.process.recovery.start_note import PORTER_NOTE, Note
from handrail.process.spec import NetworkHandle, ProcessSpec
from handrail.server.results import owned
from handrail.server.sessions import Sessions

if TYPE_CHECKING:
    from handrail.network.managed.porter_life import PorterLife

log = logging.getLogger(__name__)


async def adopt(
    sessions: Sessions,
    launcher: Launcher,
    loop: asyncio.AbstractEventLoop,
    network: Callable[[], PorterLife],
    ended: Callable[[int], None],
) -> tuple[int, int]:
    """Adopt everything the keeper holds; returns how many sessions and processes.

    ``network`` gives the porter's owner, if there is a porter or a process that needs one.
    ``ended`` is told when a sandbox ends, as ``FoundSandbox`` says.
    """
    began = time.monotonic()
    kept, found = await launcher.found()
    if any(one.cut for one in found):
        for one in found:
            for fd in one.fds.values():
                os.close(fd)
        raise UsageError(
            f"the {len(found)} processes of the previous server need more descriptors than this"
            " server may open; they keep running: raise `ulimit -n` and start again"
        )

    def resandbox(spec: ProcessSpec, found: Found, listener: int, calls: int) -> ProcessSpec:
        return _resandboxed(spec, found, listener, calls, launcher, loop, ended)

    def renetwork(text: str, number: int, held: dict[bytes, int]) -> NetworkHandle:
        return network().revive(text, number, held)

    porters = [one for one in found if one.note == PORTER_NOTE]
    found = [one for one in found if one.note != PORTER_NOTE]
    sessions.revive(kept, began if launcher.lost_at is None else launcher.lost_at)
    count = 0
    for one, note, detached in _newest(kept, found, launcher):
        session = sessions.get(note.owner)
        if session is None and not detached:
            _end(one, launcher)
            continue
        try:
            child, closed_ago = revive(one, note, launcher, loop, resandbox, renetwork)
        except (OSError, ValueError) as error:
            # Its output cannot be read, so no client could learn what it did.
            log.error("process %r cannot be taken over (%s); it is ended", note.key[:80], error)
            _end(one, launcher)
            continue
        if session is None:
            sessions.revive_detached(note.owner, child, closed_ago)
            sessions.results.begin(child, owned(note.owner), note.owner)
        else:
            session.table.revive(child, closed_ago)
            if note.loopback is not None and one.exit is None:
                name, key, address = note.loopback
                session.loopbacks.revive(name, key, one.pid, address)
            if session.left:
                sessions.store(session, [child.key])
        count += 1
    for porter in porters:
        network().adopt(porter)
    if porters or any(child.spec.network is not None for child in sessions.children()):
        network().adopted()
    if found:
        log.warning(
            "took over %d processes of %d sessions in %.0f ms",
            count,
            len(sessions),
            (time.monotonic() - began) * 1000,
        )
    return len(sessions), count


def _resandboxed(
    spec: ProcessSpec,
    found: Found,
    listener: int,
    calls: int,
    launcher: Launcher,
    loop: asyncio.AbstractEventLoop,
    ended: Callable[[int], None],
) -> ProcessSpec:
    """Restore a sandboxed process: its signals, its syscall supervisor, its exit."""
    from handrail.sandbox.bwrap.found_instance import FoundSandbox
    from handrail.sandbox.denial import judge

    inside = FoundSandbox(found.pid, ended, tty=spec.tty)
    if listener >= 0:
        keep = partial(launcher.keep, found.child, release.CALLS)
        way_out = None if spec.network is None else spec.network.way_out
        inside.go_on(listener, calls, loop, keep, way_out)
    return replace(spec, running_sandbox=inside, judge=judge)


async def renew_keeper(launcher: Launcher) -> None:
    """Have the keeper exec the program that belongs to this server; it keeps everything."""
    reason = await asyncio.to_thread(start_keeper.check_keeper)
    if reason is None:
        try:
            await launcher.replace_keeper(*start_keeper.PROGRAM)
        except KeeperLost as error:
            reason = str(error)
    if reason is not None:
        log.error("the keeper stays the one it was: %s", reason)


def _newest(
    kept: dict[bytes, bytes], found: list[Found], launcher: Launcher
) -> list[tuple[Found, Note, bool]]:
    """Each process with its note, and whether it is detached from any session.

    An id may occur twice: it was used again while the keeper still had the previous process,
    because that had left descendants or the keeper was not told in time.  The older one gets
    another id.
    """
    chosen: dict[tuple[str, str], tuple[Found, Note, bool]] = {}
    for one in found:
        note = start_note.decode(one.note)
        if note is None:
            _end(one, launcher)
            continue
        move = start_note.moved(kept.get(b"child/%d" % one.child))
        if move is not None:
            note = msgspec.structs.replace(note, owner=move.owner, key=move.key)
        this = (one, note, move is not None and move.detached)
        other = chosen.setdefault((note.owner, note.key), this)
        if other is not this:
            older, newer = sorted((other, this), key=lambda each: each[1].started)
            chosen[note.owner, note.key] = newer
            if older[0].exit is None:
                _end(older[0], launcher)
            else:
                spare = f"{note.key} (before {older[0].child})"
                renamed = msgspec.structs.replace(older[1], key=spare)
                chosen[note.owner, spare] = (older[0], renamed, older[2])
    return list(chosen.values())


def _end(one: Found, launcher: Launcher) -> None:
    """End a process that no client can ask for: its session is gone."""
    for fd in one.fds.values():
        os.close(fd)
    launcher.discard(one.child, running=one.exit is None)
