"""A command may put times back: what came into being meanwhile is protected all the same."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.plan.directory import UNSETTLED_NS
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve
from tests.support.sandboxes import Held


@pytest.fixture
def ws() -> Iterator[Path]:
    """With all the protected names, so that no cover of ours changes it."""
    place = Path(tempfile.mkdtemp(prefix="handrail-ws-", dir="/var/tmp"))
    for name in (".git", ".agents", ".codex", "sub", "other"):
        place.joinpath(name, "x").mkdir(parents=True)
    yield place
    shutil.rmtree(place)


def profile(ws: Path, *more: Entry) -> Profile:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots"))
    root = os.fsencode(ws)
    intent = Intent(entries=(*entries, *more), workspace_roots=(root,))
    return resolve(intent, root, Machine())


def settle() -> None:
    time.sleep(2 * UNSETTLED_NS / 1e9)  # the clock is what is asked here


def run(held: Held, asked: Profile, ws: Path, script: str) -> int:
    return held.run(asked, ["/bin/sh", "-c", script], os.fsencode(ws))[0]


def put_back(place: Path, before: os.stat_result) -> None:
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_repository_that_was_made_meanwhile(held: Held, ws: Path) -> None:
    settle()
    asked = profile(ws)
    assert run(held, asked, ws, "echo x > sub/f && rm sub/f") == 0
    settle()
    assert run(held, asked, ws, "true") == 0
    before = os.stat(ws / "sub")
    (ws / "sub/.git").mkdir()
    put_back(ws / "sub", before)
    assert run(held, asked, ws, "echo x > sub/.git/config") != 0
    assert run(held, asked, ws, "mv sub elsewhere") != 0


def test_a_directory_that_was_exchanged_for_one_with_a_repository(held: Held, ws: Path) -> None:
    (ws / "other/x/.git").mkdir()
    settle()
    asked = profile(ws)
    assert run(held, asked, ws, "true") == 0
    before = os.stat(ws / "sub/x")
    os.rename(ws / "sub", ws / "gone")
    os.rename(ws / "other", ws / "sub")
    put_back(ws / "sub/x", before)
    assert run(held, asked, ws, "echo x > sub/x/.git/config") != 0


def test_a_file_that_came_to_match_a_pattern(held: Held, ws: Path) -> None:
    asked = profile(ws, Entry(Access.DENY, glob="**/*.env"))
    settle()
    assert run(held, asked, ws, "ls sub") == 0
    before = os.stat(ws / "sub")
    (ws / "sub/a.env").write_text("secret")
    put_back(ws / "sub", before)
    assert run(held, asked, ws, "cat sub/a.env") != 0


def test_a_file_that_came_within_the_same_tick(held: Held, ws: Path) -> None:
    asked = profile(ws, Entry(Access.DENY, glob="**/*.env"))
    for number in range(20):
        (ws / "sub/touched").write_text("x")
        held.planner.plan(asked)
        (ws / f"sub/{number}.env").write_text("secret")
        plan = held.planner.plan(asked)
        assert plan.access(os.fsencode(ws / f"sub/{number}.env")) is Access.DENY
