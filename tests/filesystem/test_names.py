"""Names that a process is told to refuse: neither made nor removed, by whatever way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem import local, names


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A directory in which ``.git`` must not be made, and ``kept`` is as good as not there."""
    for name in ("kept", "tree/.git", "sub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tree" / "file").touch()
    (tmp_path / "here").symlink_to(".")
    (tmp_path / "dangling").symlink_to("sub/../.git")
    names.refuse([os.fsencode(tmp_path / name) for name in (".git", "kept")])
    yield tmp_path
    names.refuse(())


@pytest.mark.parametrize(
    "change",
    [
        lambda root: local.write_file(f"{root}/.git", b""),
        lambda root: local.write_file(f"{root}/here/.git", b""),
        lambda root: local.write_file(f"{root}/dangling", b""),
        lambda root: local.write_file(f"{root}/kept/x", b""),
        lambda root: local.write_file(f"{root}/kept/x", b"", follow=False),
        lambda root: local.create_directory(f"{root}/.git", recursive=False),
        lambda root: local.create_directory(f"{root}/here/.git/a/b"),
        lambda root: local.create_directory(f"{root}/.git/a/b", follow=False),
        lambda root: local.create_directory(f"{root}/kept/x"),
        lambda root: local.copy(f"{root}/tree/file", f"{root}/.git"),
        lambda root: local.copy(f"{root}/here", f"{root}/.git"),
        lambda root: local.copy(f"{root}/tree", f"{root}/here", recursive=True),
        lambda root: local.copy(f"{root}/tree", f"{root}/.git", recursive=True),
        lambda root: local.remove(f"{root}/kept"),
        lambda root: local.remove(f"{root}/here/kept", recursive=False),
    ],
)
def test_they_are_read_only(root: Path, change: Callable[[Path], None]) -> None:
    with pytest.raises(FilesError, match="Read-only file system"):
        change(root)
    assert not (root / ".git").exists()
    assert os.listdir(root / "kept") == []


def test_the_same_names_elsewhere_are_free(root: Path) -> None:
    local.create_directory(f"{root}/sub/.git")
    local.write_file(f"{root}/sub/kept", b"")
    local.copy(f"{root}/tree", f"{root}/other", recursive=True)
    local.remove(f"{root}/other")
    local.remove(f"{root}/sub")
    assert sorted(os.listdir(root)) == ["dangling", "here", "kept", "tree"]
