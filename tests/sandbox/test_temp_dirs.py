"""Clearing away what commands have left in their directories for temporary files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from handrail.sandbox import temp_dirs
from handrail.sandbox.temp_dirs import clear


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
