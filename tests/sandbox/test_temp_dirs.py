"""Clearing away what commands have left in their directories for temporary files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from handrail.sandbox import temp_dirs
from handrail.sandbox.private_tmp import open_part
from handrail.sandbox.temp_dirs import TempDir, clear


@pytest.mark.parametrize("mask", [0o777, 0o277, 0o077, 0])
def test_it_is_the_owners_alone_whatever_the_umask_is(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        made = TempDir(place=os.fsencode(tmp_path))
        part = open_part(made.path, b"/tmp", b"tmp", {b"/tmp/a/b": True})
        modes = [
            os.stat(made.path).st_mode,
            *(os.fstat(o.fd).st_mode for o in part.opened.values()),
        ]
        part.close()
        made.remove()
    finally:
        os.umask(before)
    assert [mode & 0o7777 for mode in modes] == [0o700, 0o1700, 0o700]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("given", ["", "missing", "/nowhere/at/all", "/etc/passwd"])
def test_a_tmpdir_that_is_none_is_passed_over(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", given)
    assert temp_dirs.usual_place() == os.path.realpath(b"/tmp")


def test_closed_directories_and_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o755)
    (kept / "file").write_text("x")
    place = tmp_path / "place"
    (place / "a/b").mkdir(parents=True)
    (place / "a/b/file").write_text("x")
    (place / "a/link").symlink_to(kept)
    (place / "link").symlink_to(kept)
    (place / "a/b").chmod(0)
    (place / "a").chmod(0o100)
    clear(os.fsencode(place))
    assert not place.exists()
    assert (kept / "file").read_text() == "x"
    assert kept.stat().st_mode & 0o777 == 0o755


def test_no_depth_is_too_much(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_PATH)
    for name in ["place", *["d"] * 2500]:
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    clear(os.fsencode(tmp_path / "place"))
    assert os.listdir(tmp_path) == []


def test_no_name_is_followed_when_modes_are_given_back(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o755)
    place = tmp_path / "place"
    (place / "a").mkdir(parents=True)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(place / "a", place / "b")
            os.symlink(kept, place / "a")
            os.unlink(place / "a")
            os.rename(place / "b", place / "a")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            temp_dirs._open_up(os.fsencode(place))
            assert kept.stat().st_mode & 0o777 == 0o755
    finally:
        done.set()
        thread.join()
