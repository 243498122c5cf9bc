"""What a killed writer leaves beside a file is removed; nothing else ever is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.filesystem import local, stage_names
from handrail.filesystem.replacement import Replacement

pytestmark = pytest.mark.fault

KILLED = """
import sys
from handrail import fault_points as faults
from handrail.filesystem import local, stage_names
import os
if sys.argv[2]:
    stage_names.keep_journal(os.open(sys.argv[2], os.O_RDONLY))
faults.arm("stage.named:crash")
local.write_file(sys.argv[1], b"new")
"""


def killed_writer(path: Path, state: Path | str = "") -> None:
    """Replace a file and be killed between link and rename."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), str(state)], check=False)
    assert ended.returncode == -9


def stages(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".handrail-")]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "target"
    path.parent.mkdir()
    path.write_bytes(b"old")
    return path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(stage_names, "journal", stage_names.journal)  # put back afterwards
    fd = os.open(tmp_path / "state", os.O_RDONLY)
    yield fd
    os.close(fd)
    if isinstance(stage_names.journal, stage_names.StageJournal):
        stage_names.journal.close()


def test_the_next_write_of_the_same_file_removes_it(target: Path) -> None:
    killed_writer(target)
    assert len(stages(target.parent)) == 1
    assert target.read_bytes() == b"old"
    local.write_file(str(target), b"newer")
    assert target.read_bytes() == b"newer"
    assert not stages(target.parent)


def test_the_next_server_removes_it(target: Path, state: int, tmp_path: Path) -> None:
    killed_writer(target, tmp_path / "state")
    assert len(stages(target.parent)) == 1
    stage_names.keep_journal(state)
    assert not stages(target.parent)
    assert target.read_bytes() == b"old"
    assert (tmp_path / "state" / "stages").read_bytes() == b""


def test_two_writers_of_one_file_at_once(target: Path) -> None:
    """The stage of a writer that lives is left alone, and the second one takes another name."""
    first = Replacement(str(target))
    first.write(b"first")
    first._give_name(f"/proc/self/fd/{first.fd}")
    local.write_file(str(target), b"second")
    assert len(stages(target.parent)) == 1
    first.commit()
    assert target.read_bytes() == b"first"
    assert not stages(target.parent)


def test_the_stage_of_a_living_server_is_left_alone(
    target: Path, state: int, tmp_path: Path
) -> None:
    stage_names.keep_journal(state)
    writer = Replacement(str(target))
    writer._give_name(f"/proc/self/fd/{writer.fd}")
    noted = (tmp_path / "state" / "stages").read_bytes()
    assert noted == os.fsencode(target.parent) + b"/" + stage_names.for_target(b"target") + b"\0"
    stage_names.StageJournal(state).sweep()  # of the next server
    assert len(stages(target.parent)) == 1
    writer.commit()
    assert (tmp_path / "state" / "stages").read_bytes() == b""


def test_the_journal_is_opened_for_the_first_stage_and_ends_with_its_directory(
    target: Path, state: int, tmp_path: Path
) -> None:
    def held() -> int:
        fds = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return [os.readlink(fd) for fd in fds if os.path.lexists(fd)].count(str(journal))

    journal = tmp_path / "state" / "stages"
    stage_names.keep_journal(state)
    assert held() == 0
    writer = Replacement(str(target))
    writer._give_name(f"/proc/self/fd/{writer.fd}")
    assert held() == 1
    assert journal.read_bytes()
    stage_names.end_journal(state)
    assert held() == 0
    writer.commit()
    before = journal.read_bytes()
    local.write_file(str(target), b"later")  # in a directory that its server uses no more
    assert journal.read_bytes() == before


@pytest.mark.parametrize("kind", ["directory", "link", "other name", "pipe"])
def test_no_other_file_is_removed(tmp_path: Path, kind: str) -> None:
    name = stage_names.for_target(b"target")
    path = tmp_path / os.fsdecode(name)
    if kind == "directory":
        (path / "inner").mkdir(parents=True)
        (path / "file").touch()
    elif kind == "link":
        path.symlink_to("elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        name = b".handrail-notes"
        path = tmp_path / ".handrail-notes"
        path.write_text("mine")
    directory = os.open(tmp_path, os.O_PATH)
    stage_names.remove_abandoned(directory, name)
    os.close(directory)
    assert os.path.lexists(path)
    assert kind != "directory" or sorted(os.listdir(path)) == ["file", "inner"]
    (tmp_path / "target").write_text("old")
    local.write_file(str(tmp_path / "target"), b"new")
    assert (tmp_path / "target").read_bytes() == b"new"
    assert os.path.lexists(path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_left_alone(target: Path) -> None:
    path = target.parent / os.fsdecode(stage_names.for_target(b"target"))
    path.write_text("theirs")
    os.chown(path, 1000, 1000)
    local.write_file(str(target), b"new")
    assert path.read_text() == "theirs"
    assert target.read_bytes() == b"new"
