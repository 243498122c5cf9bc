"""The runner that repeats tests under load counts what it saw, and stops at a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system import repeat

CASES = """
from pathlib import Path

def test_good():
    pass

def test_good_once():
    Path({first!r}).touch(exist_ok=False)
"""


@pytest.mark.timeout(300)
def test_a_failure_in_the_second_round_stops_it_and_is_counted(tmp_path: Path) -> None:
    case = tmp_path / "test_case.py"
    case.write_text(CASES.format(first=str(tmp_path / "first")))
    options = ["--rounds", "3", "--load", "1", "--users", "root", "-n", "0"]
    done = subprocess.run(
        [sys.executable, repeat.__file__, *options, str(case)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    counted = [line.split() for line in done.stdout.splitlines() if "test_case::" in line]
    assert [line[:3] for line in counted] == [["2", "/", "2"], ["1", "/", "2"]]
    assert "round 2\n" in done.stdout
    assert "round 3\n" not in done.stdout
