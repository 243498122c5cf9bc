"""Patches on the real files of this machine: links, modes, pipes, folders in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail.errors import FilesError, PatchError
from handrail.filesystem.regular_file import READ_LIMIT
from handrail.patch.apply import Mode, apply
from handrail.patch.command import LocalFiles
from handrail.patch.grammar import parse


def patched(folder: Path, body: str, mode: Mode) -> list[str]:
    patch = parse(f"*** Begin Patch\n{body}\n*** End Patch")
    return [change.shown for change in apply(patch, LocalFiles(), str(folder), mode)]


def failed(folder: Path, body: str, mode: Mode) -> str:
    with pytest.raises(PatchError) as caught:
        patched(folder, body, mode)
    return str(caught.value).replace(str(folder), "{cwd}")


both = pytest.mark.parametrize("mode", Mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "f").write_text("a\nb\n")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "d").mkdir()
    (tmp_path / "to_d").symlink_to("d")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@both
def test_links_are_written_through(folder: Path, mode: Mode) -> None:
    patched(folder, "*** Update File: link\n-a\n+A\n*** Add File: to_d/x\n+1", mode)
    assert (folder / "f").read_text() == "A\nb\n"
    assert (folder / "link").is_symlink()
    assert (folder / "d" / "x").read_text() == "1\n"


@both
def test_a_link_to_nowhere_can_be_added_to(folder: Path, mode: Mode) -> None:
    patched(folder, "*** Add File: nowhere\n+1", mode)
    assert (folder / "missing").read_text() == "1\n"


@both
def test_deleting_a_link_leaves_its_target(folder: Path, mode: Mode) -> None:
    patched(folder, "*** Delete File: link", mode)
    assert not (folder / "link").is_symlink()
    assert (folder / "f").exists()


@both
@pytest.mark.parametrize("name", ["nowhere", "loop", "to_d", "d", "f/x", "missing"])
def test_what_cannot_be_deleted(folder: Path, mode: Mode, name: str) -> None:
    assert (
        failed(folder, f"*** Delete File: {name}", mode) == f"Failed to delete file {{cwd}}/{name}"
    )


@both
@pytest.mark.parametrize("name", ["d", "loop", "f/x"])
def test_what_cannot_be_written(folder: Path, mode: Mode, name: str) -> None:
    assert (
        failed(folder, f"*** Add File: {name}\n+1", mode) == f"Failed to write file {{cwd}}/{name}"
    )


@both
def test_a_folder_that_is_a_link_to_nowhere(folder: Path, mode: Mode) -> None:
    said = failed(folder, "*** Add File: nowhere/x/y\n+1", mode)
    assert said == "Failed to create parent directories for {cwd}/nowhere/x/y"


@both
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "No such file or directory (os error 2)"),
        ("nowhere", "No such file or directory (os error 2)"),
        ("loop", "Symbolic link loop (os error 40)"),
        ("f/x", "Not a directory (os error 20)"),
        ("d", "path `{cwd}/d` is not a file"),
        ("pipe", "path `{cwd}/pipe` is not a file"),
        ("x" * 256, "Filename too long (os error 36)"),
    ],
)
def test_what_cannot_be_updated(folder: Path, mode: Mode, name: str, why: str) -> None:
    said = failed(folder, f"*** Update File: {name}\n-a", mode)
    assert said == f"Failed to read file to update {{cwd}}/{name}: {why}"


@both
def test_a_file_moved_onto_a_link_to_itself_survives(folder: Path, mode: Mode) -> None:
    assert patched(folder, "*** Update File: f\n*** Move to: link\n-a\n+A", mode) == ["link"]
    assert (folder / "link").read_text() == "A\nb\n"


@both
def test_a_link_moved_onto_its_target_goes(folder: Path, mode: Mode) -> None:
    patched(folder, "*** Update File: link\n*** Move to: f\n-a\n+A", mode)
    assert (folder / "f").read_text() == "A\nb\n"
    assert not (folder / "link").is_symlink()


@both
def test_a_file_moved_onto_another_name_of_it_survives(folder: Path, mode: Mode) -> None:
    (folder / "twin").hardlink_to(folder / "f")
    patched(folder, "*** Update File: f\n*** Move to: twin\n-a\n+A", mode)
    assert (folder / "twin").read_text() == "A\nb\n"
    assert not (folder / "f").exists()


def test_two_names_for_one_file_do_not_lose_an_edit(folder: Path) -> None:
    body = "*** Update File: f\n-a\n+A\n*** Update File: link\n-b\n+B"
    assert failed(folder, body, Mode.ATOMIC) == "{cwd}/link changed while the patch was applied"
    assert (folder / "f").read_text() == "a\nb\n"
    patched(folder, body, Mode.COMPATIBLE)
    assert (folder / "f").read_text() == "A\nB\n"


@both
def test_mode_and_other_names_of_a_file_stay(folder: Path, mode: Mode) -> None:
    (folder / "f").chmod(0o751)
    (folder / "twin").hardlink_to(folder / "f")
    patched(folder, "*** Update File: f\n-a\n-b", mode)
    patched(folder, "*** Add File: f\n+longer than before", mode)
    assert (folder / "twin").read_text() == "longer than before\n"
    assert (folder / "f").stat().st_mode & 0o777 == 0o751


@both
def test_a_pipe_can_be_deleted_and_holds_nobody(folder: Path, mode: Mode) -> None:
    assert failed(folder, "*** Add File: pipe\n+1", mode) == "Failed to write file {cwd}/pipe"
    patched(folder, "*** Delete File: pipe", mode)
    assert not (folder / "pipe").exists()


def test_folders_made_for_nothing_are_removed_again(folder: Path) -> None:
    body = "*** Add File: n/o/p\n+1\n*** Add File: nowhere/x\n+1"
    assert (
        failed(folder, body, Mode.ATOMIC)
        == "Failed to create parent directories for {cwd}/nowhere/x"
    )
    assert not (folder / "n").exists()


def test_the_text_after_dots_is_resolved_without_the_file_system(folder: Path) -> None:
    patched(folder, "*** Add File: to_d/../x\n+1\n*** Add File: none/../y\n+1", Mode.ATOMIC)
    assert (folder / "x").exists()
    assert (folder / "y").exists()


def test_too_large_to_read(folder: Path) -> None:
    os.truncate(folder / "f", READ_LIMIT + 1)
    with pytest.raises(FilesError, match=rf"^file is too large to read: limit is {READ_LIMIT}"):
        LocalFiles().read(str(folder / "f"))


def test_size_zero_does_not_mean_empty() -> None:
    assert LocalFiles().read("/proc/version").startswith(b"Linux")


def test_no_descriptor_is_left_open(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for mode in Mode:
        failed(folder, "*** Update File: d\n-a", mode)
        failed(folder, "*** Add File: d\n+1", mode)
        patched(folder, "*** Update File: f\n a", mode)
    assert len(os.listdir("/proc/self/fd")) == before


@both
@pytest.mark.parametrize("to", ["g", "new/g"])
def test_a_file_keeps_its_mode_when_it_moves(folder: Path, mode: Mode, to: str) -> None:
    (folder / "f").chmod(0o751)
    patched(folder, f"*** Update File: f\n*** Move to: {to}\n-a\n+A", mode)
    assert (folder / to).read_text() == "A\nb\n"
    assert (folder / to).stat().st_mode & 0o7777 == 0o751
    assert not (folder / "f").exists()


@both
def test_a_file_that_is_moved_over_keeps_its_own(folder: Path, mode: Mode) -> None:
    (folder / "f").chmod(0o751)
    (folder / "g").write_text("other")
    (folder / "g").chmod(0o640)
    patched(folder, "*** Update File: f\n*** Move to: g\n-a\n+A", mode)
    assert (folder / "g").stat().st_mode & 0o7777 == 0o640
