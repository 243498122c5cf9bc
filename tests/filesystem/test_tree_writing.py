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
from handrail.filesystem.trees.entry import Change, Wanted
from handrail.filesystem.trees.reading import read_files
from handrail.filesystem.trees.writing import write_files

MODES = (0o600, 0o644, 0o666, 0o777, 0o644, 0o000)


def changes() -> list[Change]:
    """More directories than are kept open, each with files of every mode, twice."""
    return [
        Change(b"d%d/f%d" % (number, place), "file", mode, 10**18 + place, 1)
        for number in range(40)
        for place, mode in enumerate(MODES * 2)
    ]


def test_files_have_the_mode_that_was_sent_whatever_the_umask(tmp_path: Path) -> None:
    wanted = changes()
    before = os.umask(0o027)
    try:
        assert not any(write_files(str(tmp_path), wanted, b"x" * len(wanted)))
    finally:
        os.umask(before)
    for one in wanted:
        status = os.stat(tmp_path / os.fsdecode(one.path))
        found = (status.st_mode & 0o7777, status.st_mtime_ns, status.st_size)
        assert found == (one.mode, one.modified_ns, 1), one


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
        assert write_files(str(tmp_path), [Change(b"f", "file", 0o644, 1, 1)], b"x") == [None]
        assert read_files(str(tmp_path), [Wanted(b"f", 0, 1)]) == [b"x"]
    with pytest.raises(FilesError):
        read_files(str(tmp_path / "missing"), [Wanted(b"f", 0, 1)])
    assert not turns._turn.locked()
