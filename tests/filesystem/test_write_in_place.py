"""Content that is written over a file arrives whole, also when the writer is killed meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import local, write_in_place
from tests.support.eventually import eventually

WRITER = """
import sys
from handrail import fault_points as faults
from handrail.filesystem import local
faults.arm("pour.started:crash")
local.write_file(sys.argv[1], b"n" * int(sys.argv[2]))
"""
MIB = 1024 * 1024


def linked(folder: Path, content: bytes) -> tuple[Path, Path]:
    one, two = folder / "one", folder / "two"
    one.write_bytes(content)
    two.hardlink_to(one)
    return one, two


@pytest.mark.parametrize("old", [0, 10, 5000, 3 * MIB])
@pytest.mark.parametrize("new", [0, 10, 4096, 5000, 2 * MIB + 7])
def test_every_link_has_the_new_content(tmp_path: Path, old: int, new: int) -> None:
    one, two = linked(tmp_path, b"o" * old)
    content = os.urandom(new)
    local.write_file(str(one), content)
    assert two.read_bytes() == content
    assert one.samefile(two)


@pytest.mark.fault
def test_a_writer_killed_in_the_middle_leaves_the_new_content(tmp_path: Path) -> None:
    """The writer dies as soon as the program that pours has been started."""
    size = 64 * MIB
    one, two = linked(tmp_path, b"o" * size)
    ended = subprocess.run([sys.executable, "-c", WRITER, str(one), str(size)], check=False)
    assert ended.returncode == -signal.SIGKILL
    eventually(lambda: two.read_bytes() == b"n" * size, "all new")


def test_without_a_program_the_writer_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(1, "no")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    one, two = linked(tmp_path, b"o" * 3 * MIB)
    local.write_file(str(one), b"n" * MIB)
    assert two.read_bytes() == b"n" * MIB


@pytest.mark.fault
def test_a_program_that_dies_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        write_in_place, "_PROGRAM", "import os; os.pwrite(4, b'half', 0); os.abort()"
    )
    one, two = linked(tmp_path, b"o" * MIB)
    local.write_file(str(one), b"n" * MIB)
    assert two.read_bytes() == b"n" * MIB


def test_what_the_program_meets_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_in_place, "_PROGRAM", "import os; os.write(5, b'5')")
    one, _ = linked(tmp_path, b"o" * MIB)
    with pytest.raises(FilesError, match="Input/output error"):
        local.write_file(str(one), b"n" * MIB)


def test_without_a_descriptor_for_the_program_the_writer_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = linked(tmp_path, b"o" * 10_000)
    before = set(os.listdir("/proc/self/fd"))
    duplicate, left = fcntl.fcntl, 1

    def scarce(fd: int, command: int, number: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EMFILE, "too many")
        return duplicate(fd, command, number)

    monkeypatch.setattr(write_in_place.fcntl, "fcntl", scarce)
    local.write_file(str(one), b"n" * 8000)
    assert two.read_bytes() == b"n" * 8000
    assert left < 0
    assert set(os.listdir("/proc/self/fd")) == before
