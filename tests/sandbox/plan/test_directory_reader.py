"""Directories read by programs of their own: the same as one by one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.plan import directory, directory_reader, listing
from handrail.sandbox.plan.directory import Directory, Reader
from handrail.sandbox.plan.globs import NameFilter
from handrail.sandbox.plan.mount_aliases import MountTable
from handrail.sandbox.plan.placeholders import PlaceholderRegistry
from handrail.sandbox.plan.plan import Planner
from handrail.sandbox.profile import Access, Glob, Profile, Rule

pytestmark = pytest.mark.skipif(
    not directory_reader.usable(), reason="programs in memory are for x86_64, where they may run"
)

#: What is compared of a directory: all but when it was read.
FIELDS = [name for name in Directory.__slots__ if name not in ("_inside", "look", "read", "watch")]
NAMES = (b"plain", b"D", b"@", b"Dgit", b"..x", b".x", b"\x04", b"a\nb", b"\xff\xfe", b"n" * 255)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Directories of all kinds, and more than are read one by one."""
    for number in range(directory.MANY):
        tmp_path.joinpath(f"many{number}").mkdir()
        tmp_path.joinpath(f"many{number}", "file.py").touch()
    odd = os.fsencode(tmp_path / "odd")
    os.mkdir(odd)
    for name in NAMES:
        os.mkdir(os.path.join(odd, name))
        os.close(os.open(os.path.join(odd, name, name), os.O_CREAT))
    tmp_path.joinpath("empty repository/.git").mkdir(parents=True)
    tmp_path.joinpath("repository/.git/x").mkdir(parents=True)
    tmp_path.joinpath("pointer").mkdir()
    tmp_path.joinpath("pointer/.git").touch()
    tmp_path.joinpath("no pointer").mkdir()
    tmp_path.joinpath("no pointer/x.git").touch()
    tmp_path.joinpath("kinds").mkdir()
    tmp_path.joinpath("kinds/link").symlink_to("..")
    os.mkfifo(tmp_path / "kinds/a.secret")
    tmp_path.joinpath("kinds/b.secret").mkdir()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{os.open(tmp_path / 'kinds', os.O_PATH)}/s")
    if os.geteuid() == 0:
        os.chown(tmp_path / "many3", 4711, 4711)
    tmp_path.joinpath("closed/inner").mkdir(parents=True)
    tmp_path.joinpath("closed").chmod(0o300)
    return tmp_path


@pytest.fixture
def mounted() -> Iterator[bytes]:
    table = MountTable()
    yield table.text()
    table.close()


def all_below(root: Path) -> list[bytes]:
    return [os.fsencode(path) for path, _, _ in os.walk(root)]


@pytest.mark.parametrize("patterns", [(), ("**/*.secret", "**/file?py"), ("secrets/**",)])
@pytest.mark.parametrize("counting", [True, False])
@pytest.mark.parametrize("only_of", [None, os.geteuid()])
def test_the_same_as_one_by_one(
    tree: Path, mounted: bytes, patterns: tuple[str, ...], counting: bool, only_of: int | None
) -> None:
    concerns = NameFilter(patterns) if patterns else None
    reader = Reader(os.fsencode(tree), concerns, only_of)
    reader.mounted(mounted if counting else b"")
    paths = all_below(tree)
    found = dict(reader.read_many(paths))
    assert len(found) > directory.MANY
    for path, one in found.items():
        other = reader.read(path, os.stat(path, follow_symlinks=False), many=True)
        assert [getattr(one, name) for name in FIELDS if name != "below"] == [
            getattr(other, name) for name in FIELDS if name != "below"
        ]
        assert sorted(one.below) == sorted(other.below)
    missing = set(paths) - found.keys()
    assert missing <= {os.fsencode(tree / name) for name in ("closed", "many3")}


def test_what_is_no_directory_is_left_out(tree: Path) -> None:
    tree.joinpath("link").symlink_to("many1")
    odd = [b"many0/file.py", b"link", b"gone", b"gone/inner", b"many2\0x"[:5] + b"\xff"]
    paths = [os.path.join(os.fsencode(tree), name) for name in odd]
    good = [os.fsencode(tree / f"many{number}") for number in range(20)]
    mixed = [path for pair in zip(good[:5], paths, strict=True) for path in pair] + good[5:]
    # By several programs, one of which may be quicker.
    assert sorted(path for path, _, _ in directory_reader.read(mixed, leaves=False)) == sorted(good)


def test_one_with_too_many_names_is_left_to_the_other_way(tree: Path) -> None:
    full = tree / "full"
    full.mkdir()
    for number in range(5000):
        full.joinpath(f"{number:0250}").touch()
    between = [os.fsencode(tree / "many0"), os.fsencode(full), os.fsencode(tree / "many1")]
    found = {
        path: listing.names(text) for path, _, text in directory_reader.read(between, leaves=False)
    }
    assert found == {between[0]: [b"file.py"], between[2]: [b"file.py"]}


def test_many_names_are_all_there(tree: Path) -> None:
    half = tree / "half"
    half.mkdir()
    names = {f"{number:0250}" for number in range(2000)}
    for name in names:
        half.joinpath(name).touch()
    ((_, record, text),) = directory_reader.read([os.fsencode(half)], leaves=False)
    assert {name.decode() for name in listing.names(text)} == names
    assert record[2] == len(names)


def test_more_than_one_share(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_reader, "_SHARE", 7)
    paths = [os.fsencode(tree / f"many{number}") for number in range(100)]
    found = list(directory_reader.read(paths, leaves=False))
    assert sorted(path for path, _, _ in found) == sorted(paths)
    inodes = {path: record[5] for path, record, _ in found}
    assert inodes == {path: os.stat(path).st_ino for path in paths}


def test_kinds_that_the_file_system_does_not_tell(tree: Path) -> None:
    assert listing.directories(b"Da\0Hb\0") == [b"a"]
    assert listing.directories(b"Da\0@b\0") is None
    assert listing.kind(b"Hx\0D.git\0", b".git") == listing.DIRECTORY
    assert listing.kind(b"HD.git\0", b".git") == b""


def test_left_half_way_nothing_stays(tree: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    paths = [os.fsencode(tree / f"many{number}") for number in range(directory.MANY)]
    some = directory_reader.read(paths, leaves=False)
    next(iter(some))
    some.close()  # type: ignore[attr-defined]
    assert sorted(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("failure", ["no program", "ends at once"])
def test_where_it_fails_they_are_read_one_by_one(
    tree: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    tree.joinpath("closed").chmod(0o700)
    root = os.fsencode(tree)
    rules = (Rule(b"/", Access.READ), Rule(root, Access.WRITE))
    wanted = Profile(rules, globs=(Glob(root, "**/*.secret"),))
    registry = PlaceholderRegistry()
    with_programs, without = Planner(registry), Planner(registry)
    expected = with_programs.plan(wanted)
    if failure == "no program":
        monkeypatch.setattr(os, "posix_spawn", refuse)
    else:
        monkeypatch.setattr(directory_reader, "_program", lambda leaves: b"#!/bin/false\n")
    plan = without.plan(wanted)
    assert plan.rules == expected.rules
    assert plan.matches == expected.matches
    assert plan.repositories == expected.repositories
    assert os.fsencode(tree / "repository/.git") in plan.rules
    for planner in (with_programs, without):
        planner.close()
    registry.close()


def refuse(*words: object, **options: object) -> int:
    raise OSError(11, "no processes")
