"""New files of a tree: their modes, and the ways to give them a name."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import FilesError
from handrail.filesystem import syscalls
from handrail.filesystem.trees import turns
from handrail.filesystem.trees.entry import Batch, Names, joined
from handrail.filesystem.trees.file_batches import write_files
from handrail.filesystem.trees.reading import read_files

MODES = (0o600, 0o644, 0o666, 0o777, 0o644, 0o000)


def batch() -> Batch:
    """More directories than are kept open, each with files of every mode, twice."""
    modes = [mode for _ in range(40) for mode in MODES * 2]
    names = [b"f%d" % place for place in range(len(MODES) * 2)]
    groups = [Names(b"d%d/sub" % number, names) for number in range(40)]
    times = [10**18 + place for place in range(len(modes))]
    return Batch(groups, modes, times, [1] * len(modes), b"x" * len(modes))


@pytest.fixture(params=["new directories", "directories that are there"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param != "new directories":
        for group in batch().groups:
            (tmp_path / os.fsdecode(group.directory)).mkdir(parents=True)
    return tmp_path


def check(root: Path, wanted: Batch) -> None:
    paths = [
        root / os.fsdecode(joined(one, name)) for one, names in wanted.groups for name in names
    ]
    for path, mode, when in zip(paths, wanted.modes, wanted.times, strict=True):
        status = os.stat(path)
        found = (status.st_mode & 0o7777, status.st_mtime_ns, status.st_size)
        assert found == (mode, when, 1), path


def test_files_have_the_mode_that_was_sent_whatever_the_umask(place: Path) -> None:
    wanted = batch()
    before = os.umask(0o027)
    try:
        assert not write_files(str(place), wanted)
    finally:
        os.umask(before)
    check(place, wanted)
    assert not write_files(str(place), wanted)  # done twice: the same state
    check(place, wanted)
    assert not [*place.rglob(".handrail-*")]


@pytest.mark.parametrize("number", [0, errno.ENOENT], ids=["by the fd", "by its link in /proc"])
def test_an_open_file_gets_a_name(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> int:
        ctypes.set_errno(number)
        return -1

    if number:  # as kernels before 6.10 do for an ordinary user
        monkeypatch.setattr(syscalls, "_linkat", refuse)
    here = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    fd = os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY)
    try:
        os.write(fd, b"content")
        syscalls.link_fd(fd, b"name", here)
        with pytest.raises(FileExistsError):
            syscalls.link_fd(fd, b"name", here)
    finally:
        os.close(fd)
        os.close(here)
    assert (tmp_path / "name").read_bytes() == b"content"


def test_a_call_that_hangs_lets_the_next_one_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PATIENCE", 0.01)
    with turns.turn():  # as a file system that hangs
        named = [Names(b"", [b"f"])]
        assert not write_files(str(tmp_path), Batch(named, [0o644], [1], [1], b"x"))
        assert read_files(str(tmp_path), named) == ([0o644], [1], [1], b"x", {}, {})
    with pytest.raises(FilesError):
        read_files(str(tmp_path / "missing"), named)
    assert not turns._turn.locked()
