"""Blocks of open files: limits, modes, and replacing at close."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from handrail.filesystem.handles import HandleTable, Mode
from handrail.filesystem.replacement import Replacement
from tests.filesystem.expect import failing

MIB = 1024 * 1024


@pytest.fixture
def digits(tmp_path: Path) -> str:
    path = tmp_path / "digits"
    path.write_bytes(b"0123456789")
    return str(path)


def test_reading_blocks(digits: str) -> None:
    table = HandleTable()
    table.open("h", digits)
    assert table.read_block("h", 0, 4) == (b"0123", False)
    assert table.read_block("h", 6, 4) == (b"6789", False)
    assert table.read_block("h", 6, 5) == (b"6789", True)
    assert table.read_block("h", 50, 1) == (b"", True)
    assert table.read_block("h", 2**63 - 1, 1) == (b"", True)
    table.close("h")
    table.close("h")
    with failing("not_found", "unknown file handle `h`"):
        table.read_block("h", 0, 1)


@pytest.mark.parametrize("length", [0, -1, MIB + 1])
def test_a_refused_length_keeps_the_handle(digits: str, length: int) -> None:
    table = HandleTable()
    table.open("h", digits)
    # The length is looked at before the handle, as the peer does.
    for name in ("h", "unknown"):
        with failing("invalid_input", "file read block length must be between 1 and 1048576"):
            table.read_block(name, 0, length)
    assert table.read_block("h", 0, MIB) == (b"0123456789", True)
    table.close("h")


def test_a_failed_read_closes_the_handle(digits: str) -> None:
    table = HandleTable()
    table.open("h", digits)
    with failing("invalid_input"):
        table.read_block("h", 2**63, 1)
    with failing("not_found"):
        table.read_block("h", 0, 1)


def test_names_of_handles(digits: str, tmp_path: Path) -> None:
    table = HandleTable()
    table.open("", digits)
    table.open("é" * 16, digits)
    too_long = "file handle ID must not exceed 32 bytes"
    for name in ("h" * 33, "é" * 17):
        with failing("invalid_input", too_long):
            table.open(name, str(tmp_path / "none"))
        with failing("invalid_input", too_long):
            table.read_block(name, 0, 1)
        with failing("invalid_input", too_long):
            table.write_block(name, 0, b"x")
        with failing("invalid_input", too_long):
            table.close(name)
    with failing("invalid_input", "file handle `` already exists"):
        table.open("", str(tmp_path / "none"))
    table.close_all()


def test_the_number_of_handles(digits: str, tmp_path: Path) -> None:
    table = HandleTable()
    for number in range(128):
        table.open(f"h{number}", digits)
    full = "at most 128 file handles may be open per connection"
    with failing("invalid_input", full):
        table.open("one more", str(tmp_path / "fresh"), Mode.REPLACE)
    assert not (tmp_path / "fresh").exists()
    table.close("h0")
    table.open("h0", digits)
    table.close_all()
    assert len(table) == 0


def test_a_failed_open_frees_the_name(digits: str, tmp_path: Path) -> None:
    table = HandleTable()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("digits")
    for path, mode, kind in [
        (tmp_path / "none", Mode.READ, "not_found"),
        (tmp_path, Mode.READ, "invalid_input"),
        (tmp_path / "pipe", Mode.READ, "invalid_input"),
        (tmp_path / "pipe", Mode.REPLACE, "invalid_input"),
        (tmp_path, Mode.REPLACE, "is_a_directory"),
        (tmp_path / "no/f", Mode.REPLACE, "not_found"),
        (tmp_path / "digits/x", Mode.REPLACE, "not_a_directory"),
    ]:
        with failing(kind):
            table.open("h", str(path), mode)
    for mode in Mode:
        with failing("other", "path contains a symbolic link"):
            table.open("h", str(tmp_path / "link"), mode, follow=False)
    table.open("h", str(tmp_path / "link"))
    table.close_all()


def test_replacing_takes_effect_at_close(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"ORIGINAL")
    path.chmod(0o640)
    table = HandleTable()
    table.open("w", str(path), Mode.REPLACE)
    table.write_block("w", 0, b"abc")
    table.write_block("w", 5, b"Z")
    assert path.read_bytes() == b"ORIGINAL"
    table.close("w")
    assert path.read_bytes() == b"abc\0\0Z"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["f"]


def test_a_program_can_run_while_it_is_being_replaced(tmp_path: Path) -> None:
    path = tmp_path / "program"
    shutil.copy("/bin/true", path)
    table = HandleTable()
    table.open("w", str(path), Mode.REPLACE)
    subprocess.run([str(path)], check=True)  # ETXTBSY if somebody held it open for writing
    table.close_all()


def test_opening_alone_makes_an_empty_file(tmp_path: Path) -> None:
    table = HandleTable()
    table.open("w", str(tmp_path / "new"), Mode.REPLACE)
    table.close("w")
    assert (tmp_path / "new").read_bytes() == b""


@pytest.mark.parametrize("ending", ["close_all", "forget"])
def test_without_close_nothing_has_changed(tmp_path: Path, stage: str, ending: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"ORIGINAL")
    table = HandleTable()
    table.open("w", str(path), Mode.REPLACE)
    table.open("n", str(tmp_path / "new"), Mode.REPLACE)
    for name in ("w", "n"):
        table.write_block(name, 0, b"half")
    if ending == "close_all":
        table.close_all()
    else:
        table.forget("w")
        table.forget("n")
    assert path.read_bytes() == b"ORIGINAL"
    assert os.listdir(tmp_path) == ["f"]


def test_a_closed_table_opens_nothing(digits: str, tmp_path: Path) -> None:
    table = HandleTable()
    table.close_all()
    with failing("other", "the connection is closed"):
        table.open("h", digits)
    with failing("other"):
        table.open("w", str(tmp_path / "new"), Mode.REPLACE)
    assert len(table) == 0
    assert os.listdir(tmp_path) == ["digits"]


def test_refused_writes_keep_the_handle(tmp_path: Path) -> None:
    path = tmp_path / "f"
    table = HandleTable()
    table.open("w", str(path), Mode.REPLACE)
    length = "file write block length must be between 1 and 1048576"
    for data in (b"", bytes(MIB + 1)):
        for name in ("w", "unknown"):
            with failing("invalid_input", length):
                table.write_block(name, 0, data)
    for offset in (2**63 - 1, 2**64 - 1, -1):
        with failing(
            "invalid_input", "file write range exceeds the signed 64-bit file offset limit"
        ):
            table.write_block("w", offset, b"x")
    table.write_block("w", 0, bytes(MIB))
    with failing("not_found", "unknown file handle `gone`"):
        table.write_block("gone", 0, b"x")
    table.close("w")
    assert path.stat().st_size == MIB


def test_an_offset_too_far_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = HandleTable()
    table.open("w", str(tmp_path / "f"), Mode.REPLACE)

    def too_far(_fd: int, _data: object, _offset: int) -> int:
        raise OSError(errno.EFBIG, "too far")

    monkeypatch.setattr(os, "pwrite", too_far)
    with failing("other"):
        table.write_block("w", 2**62, b"x")
    monkeypatch.undo()
    table.write_block("w", 0, b"abc")
    table.close("w")
    assert (tmp_path / "f").read_bytes() == b"abc"


def test_the_wrong_direction(digits: str, tmp_path: Path) -> None:
    table = HandleTable()
    table.open("r", digits)
    with failing("other", "Bad file descriptor (os error 9)"):
        table.write_block("r", 0, b"x")
    assert table.read_block("r", 0, 1) == (b"0", False)
    table.open("w", str(tmp_path / "new"), Mode.REPLACE)
    with failing("other", "Bad file descriptor (os error 9)"):
        table.read_block("w", 0, 1)
    with failing("not_found"):  # a failed read closes, and so nothing is installed
        table.write_block("w", 0, b"x")
    table.close_all()
    assert os.listdir(tmp_path) == ["digits"]


def test_an_incomplete_content_is_not_installed(tiny_disk: Path, stage: str) -> None:
    path = tiny_disk / "f"
    path.write_bytes(b"old")
    table = HandleTable()
    table.open("w", str(path), Mode.REPLACE)
    table.write_block("w", 0, b"n" * 100_000)
    with failing("other"):
        table.write_block("w", 100_000, b"n" * 300_000)
    with failing("other", "the file was not replaced: a block of it could not be written"):
        table.close("w")
    assert path.read_bytes() == b"old"
    assert os.listdir(tiny_disk) == ["f"]


def test_a_block_written_at_last_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    table = HandleTable()
    table.open("w", str(path), Mode.REPLACE)

    def full(_fd: int, _data: object, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with failing("other"):
        table.write_block("w", 0, b"abc")
    monkeypatch.undo()
    table.write_block("w", 0, b"abc")
    table.close("w")
    assert path.read_bytes() == b"abc"


def test_closing_during_a_read_leaves_the_read_alone(
    digits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = HandleTable()
    table.open("h", digits)
    reading, closed = threading.Event(), threading.Event()
    real = os.pread

    def slow(fd: int, length: int, offset: int) -> bytes:
        reading.set()
        assert closed.wait(10)
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", slow)
    outcome: list[tuple[bytes, bool]] = []
    reader = threading.Thread(target=lambda: outcome.append(table.read_block("h", 0, 10)))
    reader.start()
    assert reading.wait(10)
    table.close("h")
    closed.set()
    reader.join()
    assert outcome == [(b"0123456789", False)]


def test_closing_waits_for_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    table = HandleTable()
    table.open("w", str(path), Mode.REPLACE)
    writing, go_on = threading.Event(), threading.Event()
    real = Replacement.write

    def slow(self: Replacement, data: bytes, offset: int | None = None) -> None:
        writing.set()
        assert go_on.wait(10)
        real(self, data, offset)

    monkeypatch.setattr(Replacement, "write", slow)
    writer = threading.Thread(target=lambda: table.write_block("w", 0, b"abc"))
    writer.start()
    assert writing.wait(10)
    closer = threading.Thread(target=lambda: table.close("w"))
    closer.start()
    assert not path.exists()
    go_on.set()
    closer.join()
    writer.join()
    assert path.read_bytes() == b"abc"


def test_a_lost_connection_during_a_write_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = HandleTable()
    table.open("w", str(tmp_path / "f"), Mode.REPLACE)
    writing, go_on = threading.Event(), threading.Event()
    real = Replacement.write

    def slow(self: Replacement, data: bytes, offset: int | None = None) -> None:
        writing.set()
        assert go_on.wait(10)
        real(self, data, offset)

    monkeypatch.setattr(Replacement, "write", slow)
    writer = threading.Thread(target=lambda: table.write_block("w", 0, b"abc"))
    writer.start()
    assert writing.wait(10)
    table.close_all()
    go_on.set()
    writer.join()
    assert os.listdir(tmp_path) == []
