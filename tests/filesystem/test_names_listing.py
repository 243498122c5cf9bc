"""Names of a tree, by directory and in pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail.errors import FilesError
from handrail.filesystem.trees.names_listing import NamesPage, list_names

FILES = ("a", "b", "sub/a", "sub/deep/x", "sub/deep/y", "sub-too/z", "sub/z", "last/one")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sub/link").symlink_to("../a")
    (tmp_path / "empty/er").mkdir(parents=True)
    os.mkfifo(tmp_path / "sub/pipe")
    os.mkdir(os.fsencode(tmp_path) + b"/no\xfftext")
    (tmp_path / os.fsdecode(b"no\xfftext/f\xfe")).touch()
    return tmp_path


def paths(*pages: NamesPage) -> list[bytes]:
    """The files of pages in their order."""
    return [
        os.path.join(one.entry.path, name)
        for page in pages
        for one in page.directories
        for name in one.names
    ]


def test_every_name_is_listed_once(tree: Path) -> None:
    page = list_names(str(tree))
    assert paths(page) == [
        *(b"a", b"b", b"last/one", b"no\xfftext/f\xfe", b"sub/a", b"sub/z", b"sub/deep/x"),
        *(b"sub/deep/y", b"sub-too/z"),
    ]
    assert [one.entry.path for one in page.directories] == [
        *(b"", b"empty", b"empty/er", b"last", b"no\xfftext", b"sub", b"sub/deep", b"sub-too"),
    ]
    found = [(one.path, one.kind, one.target) for one in page.others]
    assert found == [(b"sub/link", "link", b"../a"), (b"sub/pipe", "other", b"")]
    status = os.stat(tree / "sub")
    entry = page.directories[5].entry
    assert (entry.mode, entry.modified_ns) == (status.st_mode & 0o777, status.st_mtime_ns)
    assert (page.problems, page.more) == ([], None)


@pytest.mark.parametrize("most", range(1, 12))
def test_pages_of_any_size_are_the_same_tree(most: int, tree: Path) -> None:
    whole = list_names(str(tree))
    found = [list_names(str(tree), most=most)]
    while (after := found[-1].more) is not None:
        found.append(list_names(str(tree), most=most, after=after))
        assert len(found) < 50
    assert paths(*found) == paths(whole)
    assert [one for page in found for one in page.others] == whole.others
    directories = [one.entry.path for page in found for one in page.directories]
    assert list(dict.fromkeys(directories)) == [one.entry.path for one in whole.directories]
    assert all(len(paths(page)) + len(page.others) <= most for page in found)


def test_what_is_excluded_is_not_listed(tree: Path) -> None:
    page = list_names(str(tree), exclude=["sub/", "**/one", "no*", "a"])
    assert paths(page) == [b"b", b"sub-too/z"]
    assert not page.others
    with pytest.raises(FilesError, match="brackets"):
        list_names(str(tree), exclude=["[z-a]"])


def test_the_root_may_be_a_file_or_missing(tree: Path) -> None:
    page = list_names(str(tree / "a"))
    assert (page.root.kind, page.directories) == ("file", [])
    with pytest.raises(FileNotFoundError):
        list_names(str(tree / "missing"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_a_directory_that_cannot_be_read_is_named(tree: Path) -> None:
    (tree / "sub").chmod(0)
    try:
        page = list_names(str(tree))
    finally:
        (tree / "sub").chmod(0o755)
    assert [one.path for one in page.problems] == [str(tree / "sub")]
    assert b"sub-too/z" in paths(page)
