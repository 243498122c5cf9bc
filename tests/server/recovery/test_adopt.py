"""What a server makes of the list of its keeper."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from handrail.errors import KeeperLost
from handrail.process.keeper_client.answers import Found
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.keeper_client.start_keeper import KeeperHandle
from handrail.process.recovery import start_note
from handrail.process.spec import ProcessSpec
from handrail.server import app
from handrail.server.recovery import adopt
from tests.support.servers import serving


class Ending:
    """A launcher that is only told whom to end."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def discard(self, child: int, *, running: bool) -> None:
        self.ended.append(child)


def found(child: int, key: str, started: float, *, running: bool) -> Found:
    note = start_note.encode("session", key, ProcessSpec((b"x",), b"/", {}), (0.0, started))
    return Found(child, 1000 + child, None if running else (0, 0, 0, 0), note, {})


def newest(ending: Ending, *children: Found) -> dict[str, int]:
    chosen = adopt._newest({}, list(children), cast("Launcher", ending))
    return {note.key: one.child for one, note, _ in chosen}


def test_an_id_that_was_used_again_is_the_newer_ones_and_nobody_is_ended_for_it() -> None:
    """The older one has exited; what it left behind is still listed and ended with the session."""
    for order in (1, -1):
        ending = Ending()
        twins = [found(1, "p", 5.0, running=False), found(2, "p", 9.0, running=True)]
        assert newest(ending, *twins[::order]) == {"p": 2, "p (before 1)": 1}
        assert ending.ended == []


def test_one_that_runs_and_is_nobodys_any_more_is_ended() -> None:
    ending = Ending()
    assert newest(ending, found(1, "p", 5.0, running=True), found(2, "p", 9.0, running=True)) == {
        "p": 2
    }
    assert ending.ended == [1]


def test_what_has_no_note_of_ours_is_ended() -> None:
    ending = Ending()
    stranger = Found(7, 1, None, b"what?", {})
    assert newest(ending, stranger, found(1, "p", 5.0, running=True)) == {"p": 1}
    assert ending.ended == [7]


async def test_a_wait_for_the_keeper_ends_when_the_server_is_to_stop() -> None:
    async def endless() -> KeeperHandle:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    async def failing() -> KeeperHandle:
        raise KeeperLost("gone")

    cancelled = asyncio.Event()
    async with serving() as served:
        with pytest.raises(KeeperLost, match="gone"):
            await app._unless_stopped(served.server, failing())
        served.server.stopping.set()
        assert await app._unless_stopped(served.server, endless()) is None
        assert cancelled.is_set()
