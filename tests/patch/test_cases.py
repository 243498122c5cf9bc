"""The shared cases of the command, byte for byte (recorded from the tool itself)."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from handrail.patch.apply import Mode
from handrail.patch.command import run

CASES = Path(__file__).parents[1] / "cases" / "apply_patch.jsonl"


def _load() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CASES.read_text().splitlines()]


def _bytes(value: str) -> bytes:
    if value.startswith("@@hex:"):
        return bytes.fromhex(value.removeprefix("@@hex:"))
    return value.encode()


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _run(case: dict[str, Any], folder: Path, mode: Mode) -> tuple[int, str, str]:
    for name, content in case["files_before"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bytes(content))
    by_argument = case["input_mode"] == "arg"
    argv = [*([case["patch"]] if by_argument else []), *case.get("extra_args", [])]
    stdin = io.BytesIO(b"" if by_argument else (case["patch"] or "").encode())
    stdout, stderr = io.BytesIO(), io.BytesIO()
    code = run(argv, stdin, stdout, stderr, str(folder), mode=mode)
    out, err = (
        stream.getvalue().decode().replace(str(folder), "{cwd}") for stream in (stdout, stderr)
    )
    return code, out, err


@pytest.mark.parametrize("case", _load(), ids=lambda case: case["id"])
def test_case_like_the_tool(case: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(os.path.realpath(tmp_path))
    code, out, err = _run(case, folder, Mode.COMPATIBLE)
    expected = case["expect"]
    assert (code, out, err) == (expected["exit_code"], expected["stdout"], expected["stderr"])
    after = {name: _bytes(content) for name, content in expected["files_after"].items()}
    assert _files(folder) == after


@pytest.mark.parametrize("case", _load(), ids=lambda case: case["id"])
def test_case_all_or_none(case: dict[str, Any], tmp_path: Path) -> None:
    """The same answers; only what a failure leaves behind is different: nothing."""
    folder = Path(os.path.realpath(tmp_path))
    code, out, err = _run(case, folder, Mode.ATOMIC)
    expected = case["expect"]
    assert (code, out, err) == (expected["exit_code"], expected["stdout"], expected["stderr"])
    left = case["files_before"] if code else expected["files_after"]
    assert _files(folder) == {name: _bytes(content) for name, content in left.items()}
