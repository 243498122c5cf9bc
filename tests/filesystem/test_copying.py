"""Copying as exec-server 0.166.0 does it, but whole files or none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from handrail.filesystem import content
from handrail.filesystem.copying import copy
from tests.filesystem.expect import failing


def put(path: Path, content: bytes, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    put(tmp_path / "f", b"FFF", 0o751)
    put(tmp_path / "d/a", b"A")
    put(tmp_path / "d/sub/b", b"B", 0o600)
    (tmp_path / "d/link").symlink_to("a")
    os.mkfifo(tmp_path / "d/pipe")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "to-dir").symlink_to("d")
    (tmp_path / "d").chmod(0o711)
    return tmp_path


def test_a_file_takes_its_mode_along(tree: Path, stage: str) -> None:
    put(tree / "old", b"a much longer old content", 0o600)
    for name in ("new", "old"):
        copy(str(tree / "f"), str(tree / name))
        assert (tree / name).read_bytes() == b"FFF"
        assert (tree / name).stat().st_mode & 0o7777 == 0o751


def test_files_go_through_links_at_the_destination(tree: Path) -> None:
    put(tree / "target", b"old")
    (tree / "one").symlink_to("target")
    (tree / "two").symlink_to("made")
    for name in ("one", "two"):
        copy(str(tree / "f"), str(tree / name))
        assert (tree / name).is_symlink()
    assert (tree / "target").read_bytes() == b"FFF"
    assert (tree / "made").read_bytes() == b"FFF"


def test_a_file_onto_itself_keeps_its_content(tree: Path) -> None:
    os.link(tree / "f", tree / "twin")
    for name in ("f", "link", "twin"):
        copy(str(tree / "f"), str(tree / name))
        assert (tree / "f").read_bytes() == b"FFF"


@pytest.mark.parametrize("name", ["link", "dangling", "to-dir"])
@pytest.mark.parametrize("recursive", [True, False])
def test_links_are_copied_as_links(tree: Path, name: str, recursive: bool) -> None:
    copy(str(tree / name), str(tree / "copy"), recursive=recursive)
    assert os.readlink(tree / "copy") == os.readlink(tree / name)
    for taken in ("f", "dangling", "d"):
        with failing("exists"):
            copy(str(tree / name), str(tree / taken), recursive=recursive)


def test_a_tree(tree: Path, resolver: str) -> None:
    copy(str(tree / "d"), str(tree / "new/parents/e"), recursive=True)
    made = tree / "new/parents/e"
    assert sorted(os.listdir(made)) == ["a", "link", "sub"]  # the pipe is left out
    assert (made / "a").read_bytes() == b"A"
    assert (made / "sub/b").stat().st_mode & 0o777 == 0o600
    assert os.readlink(made / "link") == "a"
    mask = os.umask(0)
    os.umask(mask)
    assert made.stat().st_mode & 0o777 == 0o777 & ~mask  # directories do not take theirs along


def test_trees_are_merged(tree: Path) -> None:
    put(tree / "m/a", b"old")
    put(tree / "m/own", b"own")
    (tree / "elsewhere").mkdir()
    (tree / "m/sub").symlink_to("../elsewhere")
    copy(str(tree / "d"), str(tree / "m"), recursive=True)
    assert (tree / "m/a").read_bytes() == b"A"
    assert (tree / "m/own").read_bytes() == b"own"
    assert (tree / "m/sub").is_symlink()
    assert (tree / "elsewhere/b").read_bytes() == b"B"
    with failing("exists"):  # the link is there now
        copy(str(tree / "d"), str(tree / "m"), recursive=True)


@pytest.mark.parametrize(
    ("source", "destination", "recursive", "kind", "text"),
    [
        ("none", "x", False, "not_found", None),
        ("f", "no/x", False, "not_found", None),
        ("f", "d", False, "is_a_directory", None),
        ("f", "pipe", False, "invalid_input", None),
        (
            "d",
            "x",
            False,
            "invalid_input",
            "fs/copy requires recursive: true when sourcePath is a directory",
        ),
        ("d", "f", True, "exists", None),
        ("d", "dangling", True, "exists", None),
        (
            "pipe",
            "x",
            True,
            "invalid_input",
            "fs/copy only supports regular files, directories, and symlinks",
        ),
        (
            "/dev/null",
            "x",
            False,
            "invalid_input",
            "fs/copy only supports regular files, directories, and symlinks",
        ),
    ],
)
def test_refusals(
    tree: Path, source: str, destination: str, recursive: bool, kind: str, text: str | None
) -> None:
    before = sorted(os.listdir(tree))
    with failing(kind, text):
        copy(str(tree / source), str(tree / destination), recursive=recursive)
    assert sorted(os.listdir(tree)) == before


@pytest.mark.parametrize("destination", ["d", "d/x", "d/no/x", "d/sub", "to-dir/x", "to-dir", "."])
def test_into_itself_is_refused(tree: Path, destination: str) -> None:
    source = tree if destination == "." else tree / "d"
    with failing(
        "invalid_input",
        "fs/copy cannot copy a directory to itself or one of its descendants",
    ):
        copy(str(source), str(tree / destination), recursive=True)
    copy(str(tree / "d"), str(tree / "dd"), recursive=True)  # a longer name is no descendant


@pytest.mark.parametrize(("taken", "kind"), [("a", "is_a_directory"), ("sub", "exists")])
def test_kinds_that_do_not_fit(tree: Path, taken: str, kind: str) -> None:
    if taken == "a":
        (tree / "m/a").mkdir(parents=True)
    else:
        put(tree / "m/sub", b"")
    with failing(kind):
        copy(str(tree / "d"), str(tree / "m"), recursive=True)


def test_a_full_disk_keeps_what_was_there(tiny_disk: Path, tmp_path: Path, stage: str) -> None:
    put(tmp_path / "big", b"n" * 300_000)
    put(tiny_disk / "f", b"old")
    with failing("other"):
        copy(str(tmp_path / "big"), str(tiny_disk / "f"))
    assert os.listdir(tiny_disk) == ["f"]
    assert (tiny_disk / "f").read_bytes() == b"old"


@pytest.mark.parametrize("missing", [(), ("_by_range",), ("_by_range", "_by_sendfile")])
def test_every_way_of_moving_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    def unsupported(_source: int, _destination: int) -> int:
        raise OSError(errno.EXDEV, "no")

    for name in missing:
        monkeypatch.setattr(content, name, unsupported)
    data = os.urandom(600_001)
    put(tmp_path / "f", data)
    copy(str(tmp_path / "f"), str(tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == data


def test_proc_files_are_copied_with_content(tmp_path: Path) -> None:
    copy("/proc/version", str(tmp_path / "v"))
    assert (tmp_path / "v").read_bytes().startswith(b"Linux")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    os.makedirs(root + b"/t/\xff")
    with open(root + b"/t/\xff/\xfe", "wb") as file:
        file.write(b"content")
    os.symlink(b"\xfd", root + b"/t/\xfc")
    copy(root + b"/t", root + b"/u", recursive=True)
    with open(root + b"/u/\xff/\xfe", "rb") as file:
        assert file.read() == b"content"
    assert os.readlink(root + b"/u/\xfc") == b"\xfd"
