"""Removing names and trees, never what links lead to (E10)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import removal
from handrail.filesystem.removal import remove
from tests.filesystem.expect import as_nobody, failing


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "kept/deep").mkdir(parents=True)
    (tmp_path / "kept/file").write_bytes(b"kept")
    (tmp_path / "kept/deep/file").write_bytes(b"kept")
    (tmp_path / "t/a/b").mkdir(parents=True)
    (tmp_path / "t/a/b/f").touch()
    (tmp_path / "t/empty").mkdir()
    os.mkfifo(tmp_path / "t/pipe")
    (tmp_path / "t/a/to-kept").symlink_to(tmp_path / "kept")
    (tmp_path / "t/a/to-file").symlink_to("../../kept/file")
    (tmp_path / "t/loop").symlink_to(".")
    (tmp_path / "to-kept").symlink_to("kept")
    (tmp_path / "dangling").symlink_to("nothing")
    return tmp_path


def assert_kept(tree: Path) -> None:
    assert (tree / "kept/file").read_bytes() == b"kept"
    assert (tree / "kept/deep/file").read_bytes() == b"kept"


@pytest.mark.parametrize("follow", [True, False])
def test_e10_targets_of_links_are_kept(tree: Path, resolver: str, follow: bool) -> None:
    remove(str(tree / "t"), follow=follow)
    assert not (tree / "t").exists()
    assert_kept(tree)


@pytest.mark.parametrize("name", ["to-kept", "to-kept/", "dangling", "t/pipe", "t/a/b/f"])
def test_single_names_go_themselves(tree: Path, name: str) -> None:
    remove(f"{tree}/{name}", force=False)
    assert not os.path.lexists(str(tree / name))
    assert_kept(tree)


def test_force_hides_only_absence(tree: Path) -> None:
    for name in ("none", "none/x"):
        remove(str(tree / name))
        with failing("not_found"):
            remove(str(tree / name), force=False)
    with failing("not_a_directory"):
        remove(str(tree / "kept/file/x"))


def test_without_recursion(tree: Path) -> None:
    with failing("other"):
        remove(str(tree / "t"), recursive=False)
    assert (tree / "t/a/b/f").exists()
    remove(str(tree / "t/empty"), recursive=False)
    assert not (tree / "t/empty").exists()


@pytest.mark.parametrize("recursive", [True, False])
def test_links_are_refused_without_follow(tree: Path, resolver: str, recursive: bool) -> None:
    with failing("invalid_input", "path contains a symbolic link"):
        remove(str(tree / "to-kept"), recursive=recursive, follow=False)
    with pytest.raises(FilesError):
        remove(str(tree / "to-kept/file"), recursive=recursive, follow=False)
    assert (tree / "to-kept").is_symlink()
    assert_kept(tree)


@pytest.mark.parametrize("name", ["/", "t/.", "t/..", "t/a/.."])
def test_dots_and_the_root_are_refused(tree: Path, name: str) -> None:
    with failing("invalid_input"):
        remove(name if name == "/" else f"{tree}/{name}")
    assert (tree / "t/a/b/f").exists()


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    os.makedirs(root + b"/t/\xff/\xfe")
    with open(root + b"/t/\xff/\xfd", "w"):
        pass
    remove(root + b"/t")
    assert os.listdir(root) == []


def test_trees_deeper_than_a_path(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1100):  # 11,000 bytes of path; the limit is 4,096, of open files 1,024
        os.mkdir("directory", dir_fd=here)
        below = os.open("directory", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove(str(tmp_path / "directory"))
    assert os.listdir(tmp_path) == []


def test_what_may_not_be_removed_is_an_error(open_place: Path) -> None:
    (open_place / "t").mkdir()
    (open_place / "t/f").touch()
    with failing("permission_denied"):
        as_nobody(lambda: remove(str(open_place / "t")))
    assert (open_place / "t/f").exists()


def test_a_directory_moved_away_meanwhile_ends_it(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tree / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "bystander").touch()
    real = removal._unlink_files

    def move_then_go_on(here: int) -> list[str]:
        found = real(here)
        if os.readlink(f"/proc/self/fd/{here}").endswith("/t/a"):
            os.rename(tree / "t/a", elsewhere / "a")
        return found

    monkeypatch.setattr(removal, "_unlink_files", move_then_go_on)
    with failing("busy"):
        remove(str(tree / "t"))
    assert (elsewhere / "bystander").exists()


def test_e9_a_swapped_directory_never_leads_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "file").write_bytes(b"kept")
    (outside / "sub/file").write_bytes(b"kept")
    root = tmp_path / "t"
    stop = threading.Event()
    steps: list[Callable[[], None]] = [
        lambda: os.rename(root / "d", tmp_path / "away"),
        lambda: os.symlink(outside, root / "d"),
        lambda: os.unlink(root / "d"),
        lambda: os.rename(tmp_path / "away", root / "d"),
    ]

    def swap() -> None:
        while not stop.is_set():
            for step in steps:
                try:
                    step()
                except OSError:
                    pass  # the other side was faster

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        for _ in range(200):
            try:
                for name in ("sub", "file", "x", "y"):
                    (root / "d" / name / "z").mkdir(parents=True, exist_ok=True)
            except OSError:
                pass
            try:
                remove(str(root))
            except FilesError:
                pass
    finally:
        stop.set()
        racer.join()
    assert (outside / "file").read_bytes() == b"kept"
    assert (outside / "sub/file").read_bytes() == b"kept"
