"""``handrail apply-patch`` as a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from handrail.patch.report import NO_DIRECTORY

GOOD = "*** Begin Patch\n*** Add File: f\n+1\n*** End Patch"
HALF = "*** Begin Patch\n*** Add File: f\n+1\n*** Delete File: none\n*** End Patch\n"


def apply(*words: str, cwd: Path | None, stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "handrail", "apply-patch", *words],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=50,
        cwd=cwd,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_patch_is_an_argument_or_standard_input(tmp_path: Path) -> None:
    said = (0, "Success. Updated the following files:\nA f\n", "")
    assert apply(GOOD, cwd=tmp_path) == said
    (tmp_path / "f").unlink()
    assert apply(cwd=tmp_path, stdin=GOOD) == said
    assert (tmp_path / "f").read_text() == "1\n"


def test_a_removed_working_directory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert apply(GOOD, cwd=None) == (1, "", NO_DIRECTORY)


def test_a_failure_leaves_nothing_unless_asked_to(tmp_path: Path) -> None:
    code, out, err = apply(HALF, cwd=tmp_path)
    assert (code, out) == (1, "")
    assert err == f"Failed to delete file {tmp_path.resolve()}/none\n"
    assert list(tmp_path.iterdir()) == []
    assert apply("--compatible", HALF, cwd=tmp_path)[0] == 1
    assert (tmp_path / "f").exists()


def test_wrong_usage(tmp_path: Path) -> None:
    assert apply(cwd=tmp_path)[0] == 2
    assert apply(GOOD, GOOD, cwd=tmp_path)[::2] == (
        2,
        "Error: apply_patch accepts exactly one argument.\n",
    )
