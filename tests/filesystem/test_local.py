"""Directories, descriptions, canonical names (E7, E8)."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from handrail.filesystem import at_once, syscalls
from handrail.filesystem.directories import DIRECTORY_LIMIT
from handrail.filesystem.local import (
    DirectoryEntry,
    canonicalize,
    create_directory,
    get_metadata,
    read_directory,
    read_file,
    remove,
    write_file,
)
from tests.filesystem.expect import failing


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/inner").write_bytes(b"in")
    os.mkfifo(tmp_path / "pipe")
    for name, target in [
        ("link", "file"),
        ("dangling", "nothing"),
        ("to-dir", "dir"),
        ("loop", "loop"),
    ]:
        (tmp_path / name).symlink_to(target)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "directory", "file", "link", "size"),
    [
        ("file", False, True, False, 3),
        ("link", False, True, True, 3),
        ("pipe", False, False, False, 0),
        ("to-dir/inner", False, True, False, 2),
    ],
)
def test_metadata(
    tree: Path, name: str, directory: bool, file: bool, link: bool, size: int
) -> None:
    found = get_metadata(str(tree / name))
    assert (found.is_directory, found.is_file, found.is_symlink) == (directory, file, link)
    assert found.size == size
    assert abs(found.modified_at_ms - time.time() * 1000) < 3_600_000
    assert found.created_at_ms == 0 or found.created_at_ms <= found.modified_at_ms + 1000


def test_metadata_of_a_link_to_a_directory(tree: Path) -> None:
    found = get_metadata(str(tree / "to-dir"))
    assert (found.is_directory, found.is_symlink) == (True, True)


def test_metadata_in_memory_is_answered_at_once() -> None:
    if not syscalls.supports(syscalls.RESOLVE_CACHED | syscalls.RESOLVE_NO_SYMLINKS):
        pytest.skip("the kernel cannot open a path from its cache alone")
    if not os.path.isdir("/dev/shm"):
        pytest.skip("there is no tmpfs at /dev/shm")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"12345")
        file.flush()
        os.stat(file.name)
        found = at_once.get_metadata(file.name.encode())
        assert (found.is_file, found.size) == (True, 5)
        assert found == get_metadata(file.name.encode())
    with pytest.raises(BlockingIOError):
        at_once.get_metadata(b"/proc/self/status")  # no device, and not in memory


def test_metadata_knows_the_birth(tree: Path) -> None:
    path = tree / "file"
    os.utime(path, (1, 1))
    found = get_metadata(str(path))
    assert found.modified_at_ms == 1000
    if not found.created_at_ms:
        pytest.skip("this file system keeps no birth time")
    assert abs(found.created_at_ms - time.time() * 1000) < 3_600_000
    os.utime(path, (1, -5))
    assert get_metadata(str(path)).modified_at_ms == 0


@pytest.mark.parametrize(
    ("name", "follow", "kind", "text"),
    [
        ("dangling", True, "not_found", None),
        ("none/x", True, "not_found", None),
        ("file/x", True, "not_a_directory", None),
        ("loop", True, "other", None),
        ("link", False, "invalid_input", "path contains a symbolic link"),
        ("dangling", False, "invalid_input", "path contains a symbolic link"),
        ("loop", False, "invalid_input", "path contains a symbolic link"),
        ("none", False, "not_found", None),
    ],
)
def test_metadata_refusals(
    tree: Path, resolver: str, name: str, follow: bool, kind: str, text: str | None
) -> None:
    with failing(kind, text):
        get_metadata(str(tree / name), follow=follow)


def test_metadata_without_following(tree: Path, resolver: str) -> None:
    assert get_metadata(str(tree / "file"), follow=False).is_file
    assert get_metadata("/", follow=False).is_directory
    with pytest.raises(Exception) as caught:
        get_metadata(str(tree / "to-dir/inner"), follow=False)
    assert caught.value.kind in ("other", "not_a_directory")  # type: ignore[attr-defined]


def test_canonicalize(tree: Path) -> None:
    root = os.fsencode(os.path.realpath(tree))
    for name, expected in [
        ("link", b"/file"),
        ("to-dir/inner", b"/dir/inner"),
        ("dir/../to-dir/./inner", b"/dir/inner"),
        ("dir/", b"/dir"),
    ]:
        assert canonicalize(f"{tree}/{name}") == root + expected
    assert canonicalize("/") == b"/"
    for name, kind in [
        ("none", "not_found"),
        ("dangling", "not_found"),
        ("loop", "other"),
        ("file/x", "not_a_directory"),
    ]:
        with failing(kind):
            canonicalize(str(tree / name))


def test_read_directory_describes_what_links_lead_to(tree: Path) -> None:
    assert sorted(read_directory(str(tree))) == [
        DirectoryEntry(b"dir", True, False),
        DirectoryEntry(b"file", False, True),
        DirectoryEntry(b"link", False, True),
        DirectoryEntry(b"pipe", False, False),
        DirectoryEntry(b"to-dir", True, False),
    ]
    assert [entry.name for entry in read_directory(str(tree / "to-dir"))] == [b"inner"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("file", "not_a_directory"),
        ("pipe", "not_a_directory"),
        ("none", "not_found"),
        ("dangling", "not_found"),
    ],
)
def test_read_directory_refusals(tree: Path, name: str, kind: str) -> None:
    with failing(kind):
        read_directory(str(tree / name))


def test_e7_too_many_entries_are_a_clear_error(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / str(number)).touch()
    (tmp_path / "dangling").symlink_to("nothing")
    assert len(read_directory(str(tmp_path), limit=60)) == 60
    with failing("other", "fs/readDirectory returned 60 entries; limit is 59"):
        read_directory(str(tmp_path), limit=59)
    assert DIRECTORY_LIMIT == 50_000


def test_e8_names_that_are_not_utf8_round_trip(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    name = bytes(range(0x80, 0x100)).replace(b"/", b"")
    write_file(root + b"/" + name, b"content")
    [entry] = read_directory(root)
    assert entry.name == name
    assert read_file(root + b"/" + entry.name) == b"content"
    assert canonicalize(root + b"/" + name).endswith(name)
    assert get_metadata(os.fsdecode(root + b"/" + name)).is_file


@pytest.mark.parametrize("follow", [True, False])
def test_create_directory(tree: Path, resolver: str, follow: bool) -> None:
    create_directory(str(tree / "a/b/c"), follow=follow)
    assert (tree / "a/b/c").is_dir()
    create_directory(str(tree / "a/b/c"), follow=follow)
    create_directory(str(tree / "a/d"), recursive=False, follow=follow)
    assert (tree / "a/d").is_dir()
    create_directory("/", follow=follow)
    for path, kind in [("a/d", "exists"), ("x/y", "not_found"), ("link", "exists")]:
        with failing(kind):
            create_directory(str(tree / path), recursive=False, follow=follow)
    with failing("exists"):
        create_directory("/", recursive=False, follow=follow)
    with failing("not_a_directory"):
        create_directory(str(tree / "file/x"), follow=follow)
    with failing("exists" if follow else "not_a_directory"):
        create_directory(str(tree / "dangling/x/y"), follow=follow)


@pytest.mark.parametrize("follow", [True, False])
def test_create_directory_where_nothing_can_be_made(follow: bool) -> None:
    """The kernel says "no such file" of a place that is there; it is asked once."""
    for place in ("/proc/sys/kernel/x", "/proc/x/y/z"):
        with failing("not_found"):
            create_directory(place, follow=follow)


def test_create_directory_as_deep_as_a_path_goes(tmp_path: Path) -> None:
    deep = str(tmp_path) + "/d" * 1100
    create_directory(deep)
    assert os.path.isdir(deep)
    remove(str(tmp_path / "d"))


def test_create_directory_through_links(tree: Path, resolver: str) -> None:
    create_directory(str(tree / "to-dir"))
    create_directory(str(tree / "to-dir/new"))
    assert (tree / "dir/new").is_dir()
    for path in ("file", "link", "dangling"):
        with failing("exists"):
            create_directory(str(tree / path))
    for path in ("to-dir", "to-dir/other", "link", "file", "dangling"):
        with failing("not_a_directory"):
            create_directory(str(tree / path), follow=False)
    assert sorted(os.listdir(tree / "dir")) == ["inner", "new"]
