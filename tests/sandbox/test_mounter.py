"""Mounts that are made beside bwrap, in its namespace, by ``bwrap/mounter_stub.py``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from handrail.sandbox.bwrap import mounter, mounter_stub, premount
from handrail.sandbox.plan import mounts
from handrail.sandbox.profile import Access, Entry
from tests.sandbox.plan.test_path_rules import entry, repositories_in, sh, writable
from tests.support.sandboxes import Held, spawn

pytestmark = pytest.mark.skipif(
    not (premount.possible() and mounter.works(b"/usr/bin/bwrap")),
    reason="this machine does not let us mount beside bwrap",
)


@pytest.fixture(autouse=True)
def _many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "MANY", 2)


def actions(held: Held, profile: object) -> list[tuple[bytes, bytes]]:
    plan = held.planner.plan(profile)  # type: ignore[arg-type]
    return sorted((place[0], place[3]) for place in plan.roots_beforehand)


def test_one_tree_replaces_the_mount_of_bwrap(held: Held, ws: Path) -> None:
    repositories_in(ws, 6)
    assert (premount.PIN, os.fsencode(ws)) in actions(held, writable(ws))
    attempts = "echo x > r1/.git/x; mv r2 r9; mkdir r3/.agents/x; echo y > r1/f; grep -c r4 $F"
    code, said = sh(held, writable(ws), ws, attempts.replace("$F", "/proc/self/mountinfo"))
    assert code == 0, said
    assert (said.count("Read-only"), said.count("busy")) == (2, 1), said
    assert (ws / "r1/f").read_text() == "y\n"
    assert not (ws / "r3/.agents").exists()


def test_no_device_and_no_set_id_program_is_in_it(held: Held, ws: Path) -> None:
    repositories_in(ws, 6)
    code, said = sh(held, writable(ws), ws, f"grep ' {ws}' /proc/self/mountinfo")
    assert code == 0
    flags = [line.split()[5].split(",") for line in said.splitlines()]
    assert len(flags) > 12
    assert all({"nosuid", "nodev"} <= set(one) for one in flags), said


def test_what_is_hidden_outside_writable_paths_is_mounted_too(
    held: Held, ws: Path, tmp_path: Path
) -> None:
    repositories_in(ws, 6)
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "k").write_text("TOPSECRET")
    profile = writable(ws, entry(Access.DENY, secret), Entry(Access.DENY, glob="**/*.env"))
    (ws / "r1/a.env").write_text("TOPSECRET")
    assert (premount.EMPTY_DIRECTORY, os.fsencode(secret)) in actions(held, profile)
    code, said = sh(held, profile, ws, f"cat {secret}/k r1/a.env; rm -rf {secret}; echo end")
    assert code == 0
    assert "TOPSECRET" not in said
    assert said.count("Permission denied") >= 2, said


def test_where_bwrap_mounts_more_inside_all_is_mounted_before_it(held: Held, ws: Path) -> None:
    repositories_in(ws, 6)
    (ws / "r/w").mkdir(parents=True)
    profile = writable(ws, entry(Access.READ, ws / "r"), entry(Access.WRITE, ws / "r" / "w"))
    assert held.planner.plan(profile).beforehand
    assert actions(held, profile) == []
    code, said = sh(held, profile, ws, "echo x > r/w/f; echo x > r/f; echo x > r1/.git/x; true")
    assert (code, said.count("Read-only")) == (0, 2), said


def test_bwrap_ends_with_a_mounter_that_fails(held: Held, ws: Path) -> None:
    """Nothing runs, whatever bwrap has made by then."""
    repositories_in(ws, 6)
    wrapped = held.wrap(writable(ws), ["/bin/touch", os.fspath(ws / "ran")])
    os.rename(ws / "r5/.git", ws / "r5/git")
    os.mkdir(ws / "r5/.git")
    with tempfile.TemporaryFile() as output:
        pid = spawn(wrapped, output.fileno())
        wrapped.running.sent()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert not wrapped.running.stood()
        wrapped.running.wait()
        assert b"r5/.git cannot be protected" in os.pread(output.fileno(), 4096, 0)
    assert not (ws / "ran").exists()


def test_the_mounter_ends_with_a_bwrap_that_fails() -> None:
    """Its line is reset, and no descriptor of it is left open elsewhere."""
    stub = mounter_stub.Stub(os.geteuid(), os.getegid(), lasting=False)
    read, write = os.pipe()
    text = stub.elf(mounter_stub.END, mounter_stub.END)
    argv = (b"/proc/self/fd/8", b"/bin/false")
    assert not premount.runs(text, argv, [*mounter.lines(), (9, write)])
    assert os.read(read, 1) == b""  # both have ended
    os.close(read)
