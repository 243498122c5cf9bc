"""The rules of fs/walk, case by case as seen on exec-server 0.166.0."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from handrail.filesystem import walk as walk_module
from handrail.filesystem.walk import WalkOptions, WalkResult, walk
from tests.filesystem.expect import as_nobody, failing

WIDE = WalkOptions(max_depth=5, max_directories=100, max_entries=100)
FOLLOW = WIDE._replace(follow_directory_symlinks=True)


def brief(root: Path, result: WalkResult) -> str:
    prefix = os.fsencode(root) + b"/"
    return " ".join(
        entry.path.removeprefix(prefix).decode() + ("/" if entry.is_directory else "")
        for entry in result.entries
    ) + (" ..." if result.truncated else "")


def listing(root: Path, options: WalkOptions = WIDE) -> str:
    result = walk(str(root), options)
    assert result.errors == []
    return brief(root, result)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/c/d", "a", ".h/in", "B"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("z", "a/1", "b/2", "b/c/3", "b/c/d/4", ".hf", ".h/in/5", "B/6", "é", "Z"):
        (tmp_path / name).touch()
    for name, target in [
        ("lf", "z"),
        ("lb", "b"),
        ("ld", "none"),
        ("b/up", ".."),
        ("ln", "/dev/null"),
    ]:
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "ff")
    return tmp_path


TOP = ".h/ .hf B/ Z a/ b/ z é"


def test_breadth_first_and_sorted_by_bytes(tree: Path) -> None:
    assert listing(tree) == (f"{TOP} .h/in/ B/6 a/1 b/2 b/c/ .h/in/5 b/c/3 b/c/d/ b/c/d/4")


def test_hidden_directories_are_listed_and_not_entered(tree: Path) -> None:
    options = WIDE._replace(prune_hidden_directories=True)
    assert listing(tree, options) == f"{TOP} B/6 a/1 b/2 b/c/ b/c/3 b/c/d/ b/c/d/4"
    assert listing(tree / ".h", options) == "in/ in/5"


def test_following_enters_a_directory_once(tree: Path) -> None:
    assert listing(tree, FOLLOW) == (
        ".h/ .hf B/ Z a/ b/ lb/ z é .h/in/ B/6 a/1 b/2 b/c/ b/up/ .h/in/5 b/c/3 b/c/d/ b/c/d/4"
    )


def test_the_first_name_of_a_directory_is_entered(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/x").touch()
    (tmp_path / "a").symlink_to("r")
    (tmp_path / "z").symlink_to("r")
    assert listing(tmp_path, FOLLOW) == "a/ r/ z/ a/x"
    # The second and third name of r are not further directories.
    assert listing(tmp_path, FOLLOW._replace(max_directories=2)) == "a/ r/ z/ a/x"
    assert listing(tmp_path, FOLLOW._replace(max_directories=1)) == "a/ r/ z/ ..."


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (0, TOP),
        (1, f"{TOP} .h/in/ B/6 a/1 b/2 b/c/"),
        (2, f"{TOP} .h/in/ B/6 a/1 b/2 b/c/ .h/in/5 b/c/3 b/c/d/"),
    ],
)
def test_depth_is_no_truncation(tree: Path, depth: int, expected: str) -> None:
    assert listing(tree, WIDE._replace(max_depth=depth)) == expected


@pytest.mark.parametrize(
    ("directories", "expected"),
    [
        (1, f"{TOP} ..."),
        (2, f"{TOP} .h/in/ ..."),
        (4, f"{TOP} .h/in/ B/6 a/1 ..."),
        (7, f"{TOP} .h/in/ B/6 a/1 b/2 b/c/ .h/in/5 b/c/3 b/c/d/ ..."),
        (8, f"{TOP} .h/in/ B/6 a/1 b/2 b/c/ .h/in/5 b/c/3 b/c/d/ b/c/d/4"),
    ],
)
def test_directories_count_when_entered(tree: Path, directories: int, expected: str) -> None:
    assert listing(tree, WIDE._replace(max_directories=directories)) == expected


def test_directories_at_the_last_depth_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert listing(tmp_path, WIDE._replace(max_directories=3, max_depth=2)) == "a/ a/b/ a/b/c/"
    assert listing(tmp_path, WIDE._replace(max_directories=3)) == "a/ a/b/ a/b/c/ ..."


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (1, ".h/ ..."),
        (3, ".h/ .hf B/ ..."),
        (19, f"{TOP} .h/in/ B/6 a/1 b/2 b/c/ .h/in/5 ..."),
        (21, f"{TOP} .h/in/ B/6 a/1 b/2 b/c/ .h/in/5 b/c/3 b/c/d/ ..."),
        (22, f"{TOP} .h/in/ B/6 a/1 b/2 b/c/ .h/in/5 b/c/3 b/c/d/ b/c/d/4"),
    ],
)
def test_entries_count_when_looked_at(tree: Path, entries: int, expected: str) -> None:
    assert listing(tree, WIDE._replace(max_entries=entries)) == expected


def test_omitted_names_use_up_entries(tmp_path: Path) -> None:
    for name in "012":
        (tmp_path / name).touch()
    few = WIDE._replace(max_entries=3)
    assert listing(tmp_path, few) == "0 1 2"
    os.mkfifo(tmp_path / "zz")
    assert listing(tmp_path, few) == "0 1 2 ..."
    os.mkfifo(tmp_path / "00")
    assert listing(tmp_path, few) == "0 1 ..."
    (tmp_path / "00").unlink()
    (tmp_path / "zz").unlink()
    (tmp_path / "00").symlink_to("nothing")
    assert listing(tmp_path, few) == "0 1 2"


def test_roots_that_are_no_directory(tree: Path) -> None:
    for name in ("z", "lf", "ff", "lb"):
        assert listing(tree / name) == ""
    assert listing(tree / "lb", FOLLOW._replace(max_depth=0)) == "2 c/ up/"
    for name, kind in [("none", "not_found"), ("ld", "not_found"), ("z/q", "not_a_directory")]:
        with failing(kind):
            walk(str(tree / name), WIDE)


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"max_depth": 64, "max_directories": 10_000, "max_entries": 50_000}, True),
        ({"max_depth": 65}, False),
        ({"max_depth": -1}, False),
        ({"max_directories": 10_001}, False),
        ({"max_entries": 50_001}, False),
    ],
)
def test_upper_limits(tree: Path, change: dict[str, Any], allowed: bool) -> None:
    options = WIDE._replace(**change)
    if allowed:
        walk(str(tree), options)
        return
    with failing(
        "invalid_input",
        "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000",
    ):
        walk(str(tree), options)


@pytest.mark.parametrize("change", [{"max_directories": 0}, {"max_entries": 0, "max_depth": 65}])
def test_lower_limits(tree: Path, change: dict[str, Any]) -> None:
    with failing("invalid_input", "filesystem walk limits must be greater than zero"):
        walk(str(tree), WIDE._replace(**change))


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    os.mkdir(root + b"/\xff")
    with open(root + b"/\xff/\xfe", "w"):
        pass
    result = walk(root, WIDE)
    assert [entry.path for entry in result.entries] == [root + b"/\xff", root + b"/\xff/\xfe"]


def test_unreadable_directories_are_noted(open_place: Path) -> None:
    (open_place / "closed").mkdir(mode=0o700)
    (open_place / "open").mkdir()
    (open_place / "open/f").touch()
    result = as_nobody(lambda: walk(str(open_place), WIDE))
    assert brief(open_place, result) == "closed/ open/ open/f"
    closed = os.fsencode(open_place / "closed")
    assert result.errors == [(closed, "Permission denied (os error 13)")]
    alone = as_nobody(lambda: walk(closed, WIDE))
    assert (alone.entries, len(alone.errors), alone.truncated) == ([], 1, False)


def test_the_answer_has_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        (tmp_path / f"{number} é").touch()
    # A space becomes %20 and é %C3%A9: the name of 4 bytes takes 10 in a URI.
    each = len(f"file://{tmp_path}/") + 10 + 64
    monkeypatch.setattr(walk_module, "RESPONSE_BUDGET", 7 * each)
    result = walk(str(tmp_path), WIDE)
    assert (len(result.entries), result.truncated) == (7, True)
    monkeypatch.setattr(walk_module, "RESPONSE_BUDGET", 10 * each)
    assert not walk(str(tmp_path), WIDE).truncated


def test_huge_directories_are_cut_while_reading(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number:04}").touch()
    result = walk(str(tmp_path), WIDE._replace(max_entries=5))
    assert brief(tmp_path, result) == "0000 0001 0002 0003 0004 ..."


def test_the_root_directory_needs_no_second_slash() -> None:
    result = walk("/", WIDE._replace(max_depth=0))
    assert all(not entry.path.startswith(b"//") for entry in result.entries)
