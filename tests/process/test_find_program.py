"""Directories and programs, found as the child would find them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail.errors import SpawnFailed
from handrail.process.find_program import DEFAULT_PATH, check, find_program, open_cwd, os_text


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    """A directory with programs, opened as a child's own."""
    for folder in ("bin", "other", "denied"):
        (tmp_path / folder).mkdir()
    for name in ("bin/tool", "other/tool", "here", "other/only"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "denied/tool").write_text("no program\n")
    (tmp_path / "denied/only").mkdir()
    (tmp_path / "denied/never").write_text("")
    (tmp_path / "bin/link").symlink_to("tool")
    (tmp_path / "bin/dangling").symlink_to("nowhere")
    fd = open_cwd(os.fsencode(tmp_path))
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [
        (b"tool", b"bin", b"bin/tool"),
        (b"tool", b"other:bin", b"other/tool"),
        (b"tool", b"missing:bin", b"bin/tool"),
        (b"tool", b"denied:bin", b"bin/tool"),  # not executable: go on, as execvp does
        (b"only", b"denied:other", b"other/only"),  # a directory of that name: go on
        (b"tool", b"here:bin", b"bin/tool"),  # an entry that is no directory
        (b"here", b"", b"./here"),
        (b"here", b"bin:", b"./here"),
        (b"here", b":bin", b"./here"),
        (b"here", b"bin::other", b"./here"),
        (b"link", b"bin", b"bin/link"),
        (b"sh", b"/no/such/path:/bin", b"/bin/sh"),
    ],
)
def test_search_in_the_childs_path(here: int, name: bytes, path: bytes, found: bytes) -> None:
    assert find_program(name, {b"PATH": path}, here) == found


def test_the_servers_own_path_does_not_count(
    here: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SpawnFailed):
        find_program(b"tool", {}, here)
    with pytest.raises(SpawnFailed):
        find_program(b"tool", {b"PATH": b"/bin"}, here)


def test_without_a_path_the_usual_places_are_searched(here: int) -> None:
    found = find_program(b"sh", {}, here)
    assert os.path.dirname(found) in DEFAULT_PATH.split(b":")


@pytest.mark.parametrize("name", [b"./here", b"/bin/sh", b"bin/tool", b"no/such", b"a/"])
def test_a_path_is_left_as_it_is(here: int, name: bytes) -> None:
    assert find_program(name, {b"PATH": b"/bin"}, here) == name


@pytest.mark.parametrize(
    ("name", "path", "number"),
    [
        (b"missing", b"bin:other", errno.ENOENT),
        (b"dangling", b"bin", errno.ENOENT),
        (b"here", b"bin:other", errno.ENOENT),  # the child's directory is not searched unasked
        (b"never", b"denied", errno.EACCES),
        (b"tool", b"denied", errno.EACCES),
        (b"only", b"denied:missing", errno.EACCES),
    ],
)
def test_what_is_not_found(here: int, name: bytes, path: bytes, number: int) -> None:
    with pytest.raises(SpawnFailed) as caught:
        find_program(name, {b"PATH": path}, here)
    assert caught.value.errno == number
    assert caught.value.path == name.decode()
    assert f"(os error {number})" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "number"),
    [("missing", errno.ENOENT), ("here", errno.ENOTDIR), ("here/deeper", errno.ENOTDIR)],
)
def test_directory_that_is_none(here: int, tmp_path: Path, name: str, number: int) -> None:
    path = tmp_path / name
    with pytest.raises(SpawnFailed) as caught:
        open_cwd(os.fsencode(path))
    assert caught.value.errno == number
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)


def test_directory_stays_the_same_when_it_is_renamed(here: int, tmp_path: Path) -> None:
    tmp_path.rename(tmp_path.with_name("renamed"))
    assert find_program(b"tool", {b"PATH": b"bin"}, here) == b"bin/tool"
    tmp_path.with_name("renamed").rename(tmp_path)


def test_too_big_names_the_limit() -> None:
    assert str(os.sysconf("SC_ARG_MAX")) in os_text(errno.E2BIG)


def test_a_directory_that_may_not_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bubblewrap would start, and exit with 1 as if the command had."""
    access = os.access

    def denied(path: str, mode: int, **how: Any) -> bool:
        return path != "." and access(path, mode, **how)

    monkeypatch.setattr(os, "access", denied)
    with pytest.raises(SpawnFailed, match=f"cannot start in {tmp_path}: Permission denied") as it:
        check(b"true", {b"PATH": b"/usr/bin:/bin"}, os.fsencode(tmp_path))
    assert it.value.errno == errno.EACCES
