"""The examples do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SAID = {
    "repl_dialogue.py": ["6 * 7 -> 42", "sum(range(101)) -> 5050", "it exited with 3"],
    "build_farm.py": ["50 commands, 50 targets, failed: [7, 14, 21, 28, 35, 42, 49]"],
    "agent_openai.py": [
        "ok  42",
        "no  exec_command failed: exec command rejected by user: keep the sources",
        "? rm -rf answer.pyc: it removes files by force, without asking (rm -f)",
    ],
    "agent_anthropic.py": [
        "ok  hello",
        "? rm -rf notes.txt: it removes files by force, without asking (rm -f)",
        "no  exec_command failed: exec command rejected by user",
    ],
    "mcp_client.py": [
        "apply_patch, exec_command, kill, list_processes, read_output, write_stdin",
        "? it removes files by force, without asking (rm -f)",
        "'ls': Output:",
    ],
    "agent_loop.py": ["hello, world"],
    "cut_connection.py": ["cut 2 times; exit code 0; every line once: True"],
    "server_crash.py": [
        "1 crash; exit code 3; every line once: True",
        "the REPL is the same: True",
    ],
}


@pytest.mark.parametrize("name", SAID)
def test_an_example(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    for line in SAID[name]:
        assert line in done.stdout.splitlines(), done.stdout


def test_the_fixtures(tmp_path: Path) -> None:
    words = ["-q", "-p", "handrail.testing.fixtures", "-p", "no:cacheprovider"]
    file = EXAMPLES / "test_with_fixtures.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-c", "/dev/null", str(file)],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
