"""Changes that an event loop makes itself: little ones, in a tmpfs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from handrail.filesystem import other_root, syscalls
from handrail.protocol.environment import NOTHING
from handrail.protocol.filesystem import CopyParams, CreateDirectoryParams, RemoveParams
from handrail.protocol.filesystem import WriteFileParams as WriteParams
from handrail.server.methods import files

Calls = dict[str, Callable[[], object]]


@pytest.fixture(autouse=True)
def _needs_openat2() -> None:
    if not syscalls.supports(syscalls.RESOLVE_CACHED | syscalls.RESOLVE_NO_SYMLINKS):
        pytest.skip("the kernel cannot open a path from its cache alone")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def _calls(place: Path) -> Calls:
    """Each kind of call, with what it needs."""
    (place / "source").write_bytes(b"source")
    (place / "old").write_bytes(b"old")
    below: dict[str, Any] = {"root": None, "briefly": True}
    change = {**below, "refused": frozenset()}
    path = os.fsencode(place)
    os.stat(place)
    return {
        "write": lambda: other_root.write_file(path + b"/new", b"new", **change),
        "replace": lambda: other_root.write_file(path + b"/source", b"new", **change),
        "copy": lambda: other_root.copy(path + b"/source", path + b"/copy", **change),
        "mkdir": lambda: other_root.create_directory(path + b"/sub", recursive=False, **change),
        "remove": lambda: other_root.remove(path + b"/old", force=False, **change),
        "list": lambda: other_root.read_directory(path, **below),
    }


def test_a_tmpfs_is_changed_at_once(memory: Path) -> None:
    calls = _calls(memory)
    for name in ("write", "copy", "replace", "mkdir", "remove", "list"):
        calls[name]()
    assert sorted(os.listdir(memory)) == ["copy", "new", "source", "sub"]
    assert (memory / "copy").read_bytes() == b"source"
    assert (memory / "source").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["write", "copy", "replace", "mkdir", "remove", "list"])
def test_a_disk_is_left_to_a_thread(tmp_path: Path, name: str) -> None:
    if not os.major(tmp_path.stat().st_dev):
        pytest.skip("temporary files are not on a disk")
    call = _calls(tmp_path)[name]
    with pytest.raises(BlockingIOError):
        call()
    assert sorted(os.listdir(tmp_path)) == ["old", "source"]
    assert (tmp_path / "source").read_bytes() == b"source"


def test_what_takes_long_is_left_to_a_thread(memory: Path) -> None:
    large = memory / "large"
    large.write_bytes(b"x" * (other_root.BRIEF_SIZE + 1))
    change: dict[str, Any] = {"root": None, "refused": frozenset(), "briefly": True}
    source, path = os.fsencode(memory / "source"), os.fsencode(large)
    (memory / "source").write_bytes(b"source")
    calls: list[Callable[[], object]] = [
        lambda: other_root.write_file(path, b"small", **change),  # its old content is freed
        lambda: other_root.write_file(source, bytes(other_root.BRIEF_SIZE + 1), **change),
        lambda: other_root.remove(path, force=True, **change),
        lambda: other_root.copy(path, os.fsencode(memory / "copy"), **change),
        lambda: other_root.copy(source, path, **change),
    ]
    for call in calls:
        with pytest.raises(BlockingIOError):
            call()
    for number in range(300):
        (memory / f"name{number}").touch()
    with pytest.raises(BlockingIOError):
        other_root.read_directory(os.fsencode(memory), root=None, briefly=True)
    assert large.stat().st_size == other_root.BRIEF_SIZE + 1
    assert (memory / "source").read_bytes() == b"source"
    assert not (memory / "copy").exists()


def test_a_server_answers_small_changes_without_a_thread(memory: Path) -> None:
    conn = cast("Any", None)  # of which only the threads are needed
    uri = f"file://{memory}"
    (memory / "before").touch()
    os.stat(memory)
    answers = [
        files.write_file(conn, WriteParams(path=f"{uri}/file", data_base64="AAAA")),
        files.copy(
            conn,
            CopyParams(source_path=f"{uri}/file", destination_path=f"{uri}/copy", recursive=False),
        ),
        files.create_directory(conn, CreateDirectoryParams(path=f"{uri}/sub")),
        files.remove(conn, RemoveParams(path=f"{uri}/before")),
    ]
    assert answers == [NOTHING] * 4
    assert sorted(os.listdir(memory)) == ["copy", "file", "sub"]
