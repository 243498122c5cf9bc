"""What a tree has used is counted also when it does not end by itself."""

from __future__ import annotations

import resource
import sys
import time

import pytest

from handrail.keeper import messages
from handrail.keeper.child_record import Entry
from handrail.keeper.timeout_and_grace import CAUSE_ASKED, CAUSE_TIME
from tests.keeper.peer import Peer, read_line

#: 100 MiB and 300 ms, and then it takes longer to end than a shell.
BURN = (
    "import time; room = bytearray(100 << 20); room[::4096] = b'x' * len(room[::4096])\n"
    "while time.process_time() < 0.3: pass\n"
    "print('up', flush=True); time.sleep(600)"
)
#: ``/proc`` leaves out what is less than a tick, of user and of system time.
LEAST = 300 - 2 * 10


def check_counted_when_ended(server: Peer, script: str, cause: bytes) -> None:
    """End a shell while a script below it waits that has done its work."""
    child = server.spawn(["/bin/sh", "-c", '("$0" -S -c "$1"); true', sys.executable, script])
    assert read_line(child.out) == b"up"
    now = time.monotonic_ns() // 1_000_000
    server.say(messages.DUE, *messages.Due(child.name, cause, now, 60_000).pack())
    used = server.exit(child)
    assert LEAST <= used.user_ms + used.system_ms <= 2 * LEAST, used
    assert used.max_rss > 100 << 20


@pytest.mark.parametrize("cause", [CAUSE_TIME, CAUSE_ASKED])
def test_what_is_asked_to_end_with_its_leader_is_counted(server: Peer, cause: bytes) -> None:
    check_counted_when_ended(server, BURN, cause)


def test_one_that_lives_when_its_leader_has_ended_is_counted_up_to_then(server: Peer) -> None:
    """It is asked to end, does not, and is killed when the grace is over."""
    deaf = "import signal; signal.signal(15, signal.SIG_IGN)\n" + BURN
    check_counted_when_ended(server, deaf, CAUSE_TIME)


def test_what_lives_on_is_not_counted(server: Peer) -> None:
    child = server.spawn(["/bin/sh", "-c", '"$0" -S -c "$1" & read x', sys.executable, BURN])
    used = server.exit(child)
    assert used.user_ms + used.system_ms < LEAST, used
    assert used.max_rss < 100 << 20
    assert read_line(child.out) == b"up"
    assert server.signal(child, 9, messages.SCOPE_TREE) == 1


def test_what_was_seen_and_is_counted_later_is_counted_once() -> None:
    entry = Entry(b"one", 1, 1, {})
    entry.note_living(30, 10, 1 << 20)
    entry.count(resource.struct_rusage((0.035, 0.005, 2 << 10, *[0] * 13)))
    assert entry.total() == (35, 10, 2 << 20)
