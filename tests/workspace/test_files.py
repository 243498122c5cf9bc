"""The files of a workspace: text and bytes, paths, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from handrail import FilesError, Workspace


def test_text_and_bytes(ws: Workspace, tmp_path: Path) -> None:
    ws.files.write("notes.txt", "grüße")
    assert ws.files.read("notes.txt") == "grüße"
    assert ws.files.read(str(tmp_path / "notes.txt"), text=False) == "grüße".encode()
    ws.files.write("raw", b"\xff\0")
    assert ws.files.read("raw", text=False) == b"\xff\0"
    assert ws.files.read("raw") == "\ufffd\0"


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
