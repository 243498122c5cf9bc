"""Names that a running command exchanges while another sandbox is being made."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.bwrap.instance import others_at_work
from handrail.sandbox.bwrap.premount import possible
from handrail.sandbox.plan.placeholder_lease import Stale
from handrail.sandbox.plan.safe_open import Refused
from handrail.sandbox.plan_retries import Tries
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve
from tests.support.sandboxes import Held, spawn

EXCHANGE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.makedirs("one/.git/hooks")
os.symlink("/oldroot" + sys.argv[1], "two")
while True:
    libc.renameat2(-100, b"one", -100, b"two", 2)
    for _ in range(100000): pass
"""


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="handrail-race-", dir="/var/tmp"))
    for name in ("ws/.git", "ws/.agents", "ws/.codex", "out"):
        (made / name).mkdir(parents=True)
    yield made
    shutil.rmtree(made)


def profile(ws: Path, *more: Entry) -> Profile:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots"))
    root = os.fsencode(ws)
    intent = Intent(entries=(*entries, *more), workspace_roots=(root,))
    return resolve(intent, root, Machine())


@pytest.mark.skipif(not possible(), reason="this machine does not let us mount beforehand")
def test_nothing_is_made_where_a_link_leads(held: Held, place: Path) -> None:
    ws, asked = place / "ws", profile(place / "ws")
    argv = ["/usr/bin/python3", "-c", EXCHANGE, str(place / "out")]
    with tempfile.TemporaryFile() as output:
        first = held.wrap(asked, argv, os.fsencode(ws))
        pid = spawn(first, output.fileno())
        first.running.sent()
        assert others_at_work()
        until = time.monotonic() + 4
        while time.monotonic() < until and not os.listdir(place / "out"):
            try:
                held.run(asked, ["/bin/true"])
            except (Refused, Stale):
                pass  # seen in time
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        first.running.wait()
    assert os.listdir(place / "out") == []
    assert not others_at_work()


@pytest.mark.skipif(not possible(), reason="this machine does not let us mount beforehand")
def test_it_is_done_for_what_was_found_and_only_then(held: Held, place: Path) -> None:
    ws = place / "ws"
    assert not held.planner.plan(profile(ws)).beforehand
    (ws / "sub/.git").mkdir(parents=True)
    assert not held.planner.plan(profile(ws)).beforehand
    first = held.wrap(profile(ws), ["/bin/true"])
    assert held.planner.plan(profile(ws)).beforehand
    pattern = Entry(Access.DENY, glob="*.env")
    (ws / "a.env").write_text("x")
    assert held.planner.plan(profile(ws, pattern)).beforehand
    shutil.rmtree(ws / "sub")
    assert not held.planner.plan(profile(ws)).beforehand
    first.running.abandon()
    assert not held.planner.plan(profile(ws, pattern)).beforehand


def removing(held: Held, asked: Profile, gone: Path) -> tuple[int, bytes]:
    """Run a command, with a directory removed after the plan was made and before it is mounted."""
    first = held.wrap(asked, ["/bin/true"])  # others are at work, so it is mounted beforehand
    try:
        second = held.wrap(asked, ["/bin/true"])
        shutil.rmtree(gone)
        with tempfile.TemporaryFile() as output:
            pid = spawn(second, output.fileno())
            second.sent()
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert second.running is not None
            second.running.wait()
            return code, os.pread(output.fileno(), 1 << 20, 0)
    finally:
        first.abandon()


@pytest.mark.skipif(not possible(), reason="this machine does not let us mount beforehand")
def test_what_is_gone_from_a_shared_directory_is_left_out(held: Held, place: Path) -> None:
    ws = place / "ws"
    for name in ("gone/a/.git/refs", "stays/.git/refs"):
        (ws / name).mkdir(parents=True)
    asked = profile(ws)
    assert removing(held, asked._replace(shared=(os.fsencode(ws),)), ws / "gone") == (0, b"")
    (ws / "gone/a/.git/refs").mkdir(parents=True)
    code, said = removing(held, asked, ws / "gone")
    assert code != 0
    assert b"gone cannot be protected" in said


def test_a_later_try_covers_nothing_that_has_come_to_a_shared_directory_since(
    held: Held, place: Path
) -> None:
    ws, counted = place / "ws", Tries()
    (ws / "one/.git/refs").mkdir(parents=True)
    asked = profile(ws)._replace(shared=(os.fsencode(ws),))
    counted.plan = held.planner.plan(asked, counted)
    counted.failed(Refused("not set up"))
    (ws / "two/.git/refs").mkdir(parents=True)
    one, two = (os.fsencode(ws / name / ".git") for name in ("one", "two"))
    rules = held.planner.plan(asked, counted).rules
    assert one in rules
    assert two not in rules
    assert two in held.planner.plan(asked).rules  # of another call, from the beginning
