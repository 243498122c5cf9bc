"""The files of a workspace: text and bytes, paths, errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handrail import FilesError, Profile, UsageError, Workspace


def test_text_and_bytes(ws: Workspace, tmp_path: Path) -> None:
    ws.files.write("notes.txt", "grüße")
    assert ws.files.read("notes.txt") == "grüße"
    assert ws.files.read(str(tmp_path / "notes.txt"), text=False) == "grüße".encode()
    ws.files.write("raw", b"\xff\0")
    assert ws.files.read("raw", text=False) == b"\xff\0"
    assert ws.files.read("raw") == "\ufffd\0"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/r\xff"
    os.mkdir(raw)
    with Workspace(raw, sandbox="off") as ws:
        ws.files.write(b"d/\xfe", "x", parents=True)
        assert [entry.name for entry in ws.files.list("d")] == ["\udcfe"]
        assert ws.files.read("d/\udcfe") == "x"
        shown = ws.run(["ls"], cwd=b"d", env={"LC_ALL": b"C"}, text=False)
        assert shown.stdout == b"\xfe\n"
        assert ws.run('printf %s "$A"', env={"A": b"\xfd"}, text=False).stdout == b"\xfd"
        assert os.fsencode(ws.root) == raw


def test_what_is_neither_text_nor_bytes_is_refused(ws: Workspace) -> None:
    for call in (
        lambda: ws.files.write("f", "\udcff"),
        lambda: ws.files.read("\ud800"),
        lambda: ws.files.read(5),  # type: ignore[call-overload]
        lambda: ws.run(["echo", "\ud800"]),
        lambda: ws.run("true", env={"A": "\ud800"}),
        lambda: ws.run("true", env={"A": 5}),  # type: ignore[dict-item]
        lambda: ws.run("cat", input="\udcff"),
        lambda: ws.run("true", cwd=5),  # type: ignore[call-overload]
    ):
        with pytest.raises(UsageError):
            call()


def test_directories(ws: Workspace) -> None:
    ws.files.mkdir("a/b")
    ws.files.write("a/file", "x")
    assert [(entry.name, entry.is_directory) for entry in ws.files.list("a")] == [
        ("b", True),
        ("file", False),
    ]
    ws.files.copy("a", "c", recursive=True)
    assert ws.files.read("c/file") == "x"
    assert ws.files.stat("c/file").size == 1
    ws.files.remove("c", recursive=True)
    assert not ws.files.exists("c/file")
    assert ws.files.exists("a/b")


def test_missing_ones(ws: Workspace) -> None:
    with pytest.raises(FilesError) as info:
        ws.files.read("missing")
    assert info.value.kind == "not_found"
    with pytest.raises(FilesError):
        ws.files.remove("missing")
    ws.files.remove("missing", force=True)
    for path in ("", "a\0b"):
        with pytest.raises(FilesError) as info:
            ws.files.read(path)
        assert info.value.kind == "invalid_input"


def test_progress_is_told(ws: Workspace) -> None:
    told: list[tuple[int, int]] = []
    ws.files.write("big", b"x" * 1000, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (1000, 1000)


def test_a_walk_lists_all_others_before_it_raises(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").touch()
    found = []
    with Workspace(tmp_path, sandbox=Profile(deny=("b",))) as ws:
        walk = ws.files.walk()
        with pytest.raises(FilesError, match="cannot be read"):
            for one in walk:
                found.append(one.path)
        assert list(walk) == []
    assert found == ["a", "a/f", "b", "c", "c/f"]
