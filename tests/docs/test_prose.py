"""``scripts/check_prose`` finds programs that are spoken of as people, in code and in pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_prose"


def checked(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *paths]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Starts whoever is asked for."""\n'),
        ("a.py", "x = 1  # for somebody else\n"),
        ("a.md", "# Title\n\nThe client who connects is asked.\n"),
    ],
)
def test_a_personified_program_is_found_with_its_line(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    done = checked(path)
    assert done.returncode == 1
    assert f"{path}:{text.rstrip().count(chr(10)) + 1}:" in done.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", 'who = "nobody"\n'),
        ("a.md", "A person who reads.\n\n```\nwho | sort\n```\n\nThe user `nobody`.\n"),
    ],
)
def test_code_and_people_are_left_alone(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text.replace("A person", "a person"))
    assert checked(path).returncode == 0


def test_this_repository_is_clean() -> None:
    done = checked()
    assert done.returncode == 0, done.stdout
