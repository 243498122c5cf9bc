"""Opening without crossing a link, both ways of doing it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem.no_follow import open_no_follow, open_parent
from tests.filesystem.expect import failing


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/file").write_bytes(b"content")
    (tmp_path / "to-dir").symlink_to("dir")
    (tmp_path / "to-file").symlink_to("dir/file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


def test_plain_paths_open(tree: Path, resolver: str) -> None:
    for path in (tree / "dir/file", tree / "dir/../dir/./file"):
        fd = open_no_follow(os.fsencode(path), os.O_RDONLY)
        assert os.read(fd, 100) == b"content"
        assert not os.get_inheritable(fd)
        os.close(fd)


@pytest.mark.parametrize(
    "name", ["to-file", "to-dir/file", "dangling", "loop", "loop/x", "to-dir", "dir/../to-file"]
)
def test_a_link_anywhere_is_refused(tree: Path, resolver: str, name: str) -> None:
    with pytest.raises(OSError) as caught:
        open_no_follow(str(tree / name), os.O_RDONLY)
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_a_last_link_can_be_opened_itself(tree: Path, resolver: str) -> None:
    fd = open_no_follow(str(tree / "to-file"), os.O_PATH | os.O_NOFOLLOW)
    assert os.readlink(b"", dir_fd=fd) == b"dir/file"
    os.close(fd)
    with pytest.raises(OSError) as caught:
        open_no_follow(str(tree / "to-file"), os.O_PATH)
    assert caught.value.errno == errno.ELOOP


def test_missing_and_created_files(tree: Path, resolver: str) -> None:
    with pytest.raises(FileNotFoundError):
        open_no_follow(str(tree / "new"), os.O_RDONLY)
    os.close(open_no_follow(str(tree / "new"), os.O_WRONLY | os.O_CREAT, 0o600))
    assert (tree / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError):
        open_no_follow(str(tree / "dangling"), os.O_WRONLY | os.O_CREAT, 0o600)
    assert not (tree / "nothing").exists()


def test_the_root_and_relative_paths(tree: Path, resolver: str) -> None:
    os.close(open_no_follow(b"/", os.O_PATH))
    here = os.open(tree, os.O_PATH)
    fd = open_no_follow(b"dir/file", os.O_RDONLY, dir_fd=here)
    assert os.read(fd, 3) == b"con"
    os.close(fd)
    os.close(here)


def test_open_parent_gives_the_place_and_the_name(tree: Path, resolver: str) -> None:
    for path in ("dir/file", "dir/absent", "dir/file/"):
        fd, name = open_parent(str(tree / "x")[:-1] + path, follow=False)
        assert name == os.fsencode(Path(path).name)
        assert os.path.samestat(os.fstat(fd), os.stat(tree / "dir"))
        os.close(fd)
    fd, name = open_parent(str(tree / "to-dir/file"), follow=True)
    assert os.path.samestat(os.fstat(fd), os.stat(tree / "dir"))
    os.close(fd)
    with pytest.raises(OSError):
        open_parent(str(tree / "to-dir/file"), follow=False)
    with failing("invalid_input", "path must name an entry"):
        open_parent("/", follow=True)


def test_nul_is_refused(resolver: str) -> None:
    with pytest.raises(FilesError, match="NUL") as caught:
        open_no_follow(b"/tmp/a\0b", os.O_RDONLY)
    assert caught.value.kind == "invalid_input"
