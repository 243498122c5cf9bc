"""Waiting for missing paths, as fs/watchMissing of exec-server 0.166.0 does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from handrail.filesystem import missing_watch as watch_module
from handrail.filesystem import syscalls
from handrail.filesystem.missing_watch import MAX_PATHS, MissingWatch, WatchSlot
from tests.filesystem.expect import as_nobody


def arm(*paths: Path) -> MissingWatch:
    watch = MissingWatch.arm([str(path) for path in paths])
    assert watch is not None
    return watch


def test_fires_for_the_missing_name_alone(tmp_path: Path) -> None:
    watch = arm(tmp_path / "a", tmp_path / "b")
    (tmp_path / "other").touch()
    assert not watch.fired()
    (tmp_path / "b").touch()
    assert watch.fired()
    watch.close()
    watch.close()
    assert watch.fileno() == -1


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("nothing"),
        lambda path: os.rename(path.parent / "present", path),
        lambda path: os.link(path.parent / "present", path),
    ],
)
def test_anything_that_appears_counts(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "present").touch()
    watch = arm(tmp_path / "a")
    make(tmp_path / "a")
    assert watch.fired()
    watch.close()


def test_a_missing_ancestor_counts(tmp_path: Path) -> None:
    watch = arm(tmp_path / "p/q/r")
    (tmp_path / "q").mkdir()
    assert not watch.fired()
    (tmp_path / "p").mkdir()
    assert watch.fired()
    watch.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "mv/b").rmdir(),
        lambda root: os.rename(root / "mv/b", root / "mv/z"),
        lambda root: os.rename(root / "mv", root / "gone"),
        lambda root: (root / "mv/b").chmod(0o700),
    ],
)
def test_changes_of_the_way_count(tmp_path: Path, change: Callable[[Path], None]) -> None:
    (tmp_path / "mv/b").mkdir(parents=True)
    watch = arm(tmp_path / "mv/b/c/d")
    change(tmp_path)
    assert watch.fired()
    watch.close()


def test_nothing_to_watch(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "to-dir").symlink_to("dir")
    (tmp_path / "dangling").symlink_to("nothing")
    cases: list[list[str]] = [
        [],
        ["dir"],
        ["file"],
        ["dangling"],
        ["absent", "file"],
        ["file/x"],
        ["to-dir/x"],
        ["dangling/x"],
        ["n" * 300],
        [f"many{number}" for number in range(MAX_PATHS + 1)],
    ]
    for names in cases:
        assert MissingWatch.arm([str(tmp_path / name) for name in names]) is None
    watch = MissingWatch.arm([str(tmp_path / f"many{number}") for number in range(MAX_PATHS)])
    assert watch is not None
    watch.close()


def test_what_appears_while_arming_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = watch_module._edge
    calls = 0

    def appear_after_the_first_look(raw: bytes, arming: object = None) -> object:
        nonlocal calls
        calls += 1
        found = real(raw, arming)  # type: ignore[arg-type]
        if calls == 1:
            (tmp_path / "p").mkdir()
        return found

    monkeypatch.setattr(watch_module, "_edge", appear_after_the_first_look)
    assert MissingWatch.arm([str(tmp_path / "p/q")]) is None
    assert calls == 2


def test_no_inotify_means_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise OSError(24, "too many")

    monkeypatch.setattr(syscalls, "inotify_init", none_left)
    assert MissingWatch.arm([str(tmp_path / "a")]) is None


def test_a_closed_directory_cannot_be_watched(open_place: Path) -> None:
    (open_place / "closed").mkdir(mode=0o700)
    assert as_nobody(lambda: MissingWatch.arm([str(open_place / "closed/x")])) is None


def test_too_many_events_count_as_a_change(tmp_path: Path) -> None:
    watch = arm(tmp_path / "a")
    assert watch._matters(-1, syscalls.IN_Q_OVERFLOW, b"")
    watch.close()


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff"
    watch = MissingWatch.arm([path])
    assert watch is not None
    os.mkdir(path)
    assert watch.fired()
    watch.close()


async def test_the_loop_is_told_once(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[int] = asyncio.Queue()
    slot = WatchSlot(loop, told.put_nowait)
    assert slot.claim(7)
    assert slot.hold(7, MissingWatch.arm([str(tmp_path / "a")]))
    (tmp_path / "other").touch()
    (tmp_path / "a").touch()
    (tmp_path / "a").unlink()
    (tmp_path / "a").touch()
    assert await asyncio.wait_for(told.get(), 10) == 7
    await asyncio.sleep(0)
    assert told.empty()
    slot.close()


async def test_ids_only_go_up_and_the_newest_watch_stays(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[int] = asyncio.Queue()
    slot = WatchSlot(loop, told.put_nowait)
    assert slot.claim(20)
    assert slot.hold(20, arm(tmp_path / "a"))
    assert slot.claim(21)
    assert slot.hold(21, arm(tmp_path / "b"))
    for stale in (0, 20, 21):
        assert not slot.claim(stale)
    (tmp_path / "a").touch()  # its watch was replaced
    (tmp_path / "b").touch()
    assert await asyncio.wait_for(told.get(), 10) == 21
    # A claim that finds nothing to watch still ends the older one.
    assert slot.claim(30)
    assert slot.hold(30, arm(tmp_path / "c"))
    assert slot.claim(31)
    assert not slot.hold(31, None)
    (tmp_path / "c").touch()
    assert slot.claim(32)
    late = arm(tmp_path / "d")
    assert slot.claim(33)
    assert not slot.hold(32, late)
    assert late.fileno() == -1
    slot.close()
    assert not slot.claim(99)
    assert not slot.hold(33, arm(tmp_path / "e"))
    assert told.empty()
