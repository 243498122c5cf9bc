"""Directories that a copy makes appear with their files; nothing of a killed copy stays."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import names, stage_names, syscalls
from handrail.filesystem.trees import reading
from handrail.filesystem.trees.entry import Batch, Names
from handrail.filesystem.trees.file_batches import write_files
from handrail.filesystem.trees.reading import read_files, read_part

NAMES = [b"a", b"b", b"c", b"d", b"e"]
ALL = {name.decode(): name for name in NAMES}
STAGE = os.fsdecode(stage_names.for_target(b"new"))


def batch(directory: bytes = b"new", files: list[bytes] = NAMES, when: int = 10**18) -> Batch:
    """Files of one directory, each with its name as content."""
    lengths = [len(name) for name in files]
    modes, times = [0o644] * len(files), [when] * len(files)
    return Batch([Names(directory, files)], modes, times, lengths, b"".join(files))


def contents(directory: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in directory.iterdir()}


def test_a_new_directory_is_never_seen_with_a_part_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[list[str]] = []
    rename = syscalls.rename_new

    def seen(name: bytes, new: bytes, dir_fd: int) -> None:
        before.append(os.listdir(tmp_path / "above"))
        rename(name, new, dir_fd)

    monkeypatch.setattr(syscalls, "rename_new", seen)
    assert not write_files(str(tmp_path), batch(b"above/new"))
    assert before == [[STAGE]]
    assert contents(tmp_path / "above/new") == ALL


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_files_are_moved_where_no_directory_can_be_renamed_safely(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: bytes, new: bytes, dir_fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(syscalls, "rename_new", refused)
    assert not write_files(str(tmp_path), batch())
    assert os.listdir(tmp_path) == ["new"]
    assert contents(tmp_path / "new") == ALL


def test_a_directory_that_another_call_made_meanwhile_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = syscalls.rename_new

    def late(name: bytes, new: bytes, dir_fd: int) -> None:
        (tmp_path / "new/c").mkdir(parents=True)
        (tmp_path / "new/a").write_bytes(b"older")
        (tmp_path / "new/other").write_bytes(b"kept")
        rename(name, new, dir_fd)

    monkeypatch.setattr(syscalls, "rename_new", late)
    failed = write_files(str(tmp_path), batch())
    assert {index: error.kind for index, error in failed.items()} == {2: "is_a_directory"}
    assert os.listdir(tmp_path) == ["new"]
    (tmp_path / "new/c").rmdir()
    assert contents(tmp_path / "new") == {
        "a": b"a",
        "b": b"b",
        "d": b"d",
        "e": b"e",
        "other": b"kept",
    }


def test_a_link_that_appears_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    rename = syscalls.rename_new

    def late(name: bytes, new: bytes, dir_fd: int) -> None:
        (root / "new").symlink_to(outside)
        rename(name, new, dir_fd)

    monkeypatch.setattr(syscalls, "rename_new", late)
    assert list(write_files(str(root), batch())) == [0, 1, 2, 3, 4]
    assert os.listdir(outside) == []
    assert os.listdir(root) == ["new"]


def test_one_file_that_fails_does_not_keep_the_others_back(tmp_path: Path) -> None:
    files = [*NAMES, b"x" * 300]
    failed = write_files(str(tmp_path), batch(files=files))
    assert list(failed) == [5]
    assert failed[5].path == f"{tmp_path}/new/{'x' * 300}"
    assert contents(tmp_path / "new") == ALL
    assert list(write_files(str(tmp_path), batch(b"late", when=2**100))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("evil", [b"../up", b"..", b"", b"sub/x", b"nul\0"])
@pytest.mark.parametrize("directory", [b"new", b"there"])
def test_a_name_that_leads_elsewhere_is_refused(
    evil: bytes, directory: bytes, tmp_path: Path
) -> None:
    (tmp_path / "root/there").mkdir(parents=True)
    files = [*NAMES[:2], evil, *NAMES[2:]]
    failed = write_files(str(tmp_path / "root"), batch(directory, files))
    assert {index: error.kind for index, error in failed.items()} == {2: "invalid_input"}
    assert contents(tmp_path / "root" / directory.decode()) == ALL
    assert os.listdir(tmp_path) == ["root"]
    found = read_files(str(tmp_path / "root"), [Names(directory, files)])
    assert (list(found.problems), found.lengths) == ([2], [1, 1, -1, 1, 1, 1])
    assert list(write_files(str(tmp_path / "root"), batch(b"../up", NAMES))) == [0, 1, 2, 3, 4]
    assert not read_files(str(tmp_path / "root"), [Names(b"..", [b"root"])]).data


def test_a_batch_that_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    good = batch()
    for bad in (
        good._replace(lengths=[1] * 4),
        good._replace(data=b"abcdef"),
        good._replace(lengths=[-1, 3, 1, 1, 1]),
        good._replace(modes=[]),
    ):
        with pytest.raises(FilesError, match="fit together"):
            write_files(str(tmp_path), bad)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("refused", ["new", "new/c", "new/other"])
def test_protected_names_are_refused_in_new_directories(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_refused", names._refused)  # put back afterwards
    names.refuse([os.fsencode(tmp_path / refused)])
    failed = {index: error.kind for index, error in write_files(str(tmp_path), batch()).items()}
    if refused == "new":
        assert failed == dict.fromkeys(range(5), "read_only")
        assert os.listdir(tmp_path) == []
        return
    assert failed == ({2: "read_only"} if refused == "new/c" else {})
    left = {name: data for name, data in ALL.items() if name != "c" or not failed}
    assert contents(tmp_path / "new") == left


KILLED = """
import os, sys
from handrail import fault_points as faults
from handrail.filesystem import stage_names
from handrail.filesystem.trees.file_batches import write_files
from tests.filesystem.test_new_directory import batch
if sys.argv[2]:
    stage_names.keep_journal(os.open(sys.argv[2], os.O_RDONLY))
faults.arm("directory.filled:crash")
write_files(sys.argv[1], batch())
"""


@pytest.mark.fault
@pytest.mark.parametrize("way", ["by the next copy", "by the next server"])
def test_what_a_killed_copy_leaves_is_removed(way: str, tmp_path: Path) -> None:
    root, state = tmp_path / "root", tmp_path / "state"
    root.mkdir()
    state.mkdir()
    given = [str(root), str(state) if way == "by the next server" else ""]
    assert subprocess.run([sys.executable, "-c", KILLED, *given], check=False).returncode == -9
    assert os.listdir(root) == [STAGE]
    if way == "by the next server":
        fd = os.open(state, os.O_RDONLY)
        stage_names.sweep(fd)
        os.close(fd)
        assert os.listdir(root) == []
    else:
        assert not write_files(str(root), batch())
        assert os.listdir(root) == ["new"]
        assert contents(root / "new") == ALL


def test_a_stage_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / STAGE).mkdir()
    fd = os.open(tmp_path / STAGE, os.O_RDONLY)
    try:
        assert stage_names.lock(fd)
        assert not write_files(str(tmp_path), batch())
    finally:
        os.close(fd)
    assert sorted(os.listdir(tmp_path)) == [STAGE, "new"]
    assert contents(tmp_path / "new") == ALL


def test_files_that_do_not_fit_into_an_answer_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 10)
    for name, size in (("a", 6), ("b", 5), ("c", 4), ("link", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("a")
    found = read_files(str(tmp_path), [Names(b"", [b"a", b"b", b"c", b"link"])])
    assert (found.lengths, found.large, list(found.problems)) == ([6, -1, 4, -1], {1: 5}, [3])
    assert read_part(str(tmp_path), b"b", 2, 10) == b"xxx"
    for path in (b"link", b"missing", b"../x"):
        with pytest.raises(FilesError):
            read_part(str(tmp_path), path, 0, 1)
