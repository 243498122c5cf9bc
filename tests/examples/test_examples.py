"""The examples do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SAID = {
    "demo.py": [
        '  ✓ granted with Profile(write=("src", "release")): the copy is there',
        "  ✓ the next command says 'hello, world' and is in src",
        "  ✓ nothing ran, and the model reads why",
        "  ✓ its 40 lines and its exit code, 3, have arrived, each once and in order",
        "  ✓ the REPL was not restarted: it still knows n",
    ],
    "stream_lines.py": [
        "stdout: compiling two",
        "stderr: warning: two is old",
        "stdout: finished",
        "exit code 0; complete: True",
        "the same by a callback: 3 files",
    ],
    "shell_state.py": [
        "building release in src",
        "exit code 2, stderr apart: True",
        "timed out: True; TARGET is still release",
        "a job runs on: True",
        "a new shell knows nothing: 127",
    ],
    "editor_keys.py": ["vim exited with 0", "roses are red", "violets are blue"],
    "timeouts.py": [
        "timeout: timedOut",
        "wait: it still runs: True",
        "signal: SIGTERM",
        "check: CommandFailed, timed out: True",
        "tree: 3 of 3 ran, 0 are left",
    ],
    "directory_trip.py": [
        "up: 21 files, 312 bytes",
        "tests: exit code 1",
        "link: cases/case-19",
        "down: 20 lines, ['case-13 failed']",
    ],
    "remote_token.py": [
        "the token: welcome",
        "another: refused",
        "none: refused",
        "lines there: 3",
        "can a command read the token: False",
    ],
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
    "fleet_evaluation.py": [
        "100 tasks: 75 solved, 0 without an answer",
        "the report is in fleet-report/report.md, its plot in report.svg",
    ],
    "cut_connection.py": ["cut 2 times; exit code 0; every line once: True"],
    "server_crash.py": [
        "1 crash; exit code 3; every line once: True",
        "the REPL is the same: True",
    ],
}


#: File calls in a sandbox start a process in each of a hundred workspaces.
ARGUMENTS = {"fleet_evaluation.py": ["--sandbox", "off"]}

#: A mount namespace of its own, for any user.
UNSHARED = ("unshare", "--map-root-user", "--mount")


@pytest.mark.parametrize("name", SAID)
def test_an_example(name: str, tmp_path: Path) -> None:
    if name == "editor_keys.py" and shutil.which("vim") is None:
        pytest.skip("needs vim")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *ARGUMENTS.get(name, ())],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line in SAID[name]:
        assert line in lines, done.stdout
    assert name != "demo.py" or len(lines) == 20, done.stdout


@pytest.mark.skipif(
    subprocess.run([*UNSHARED, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs user namespaces",
)
def test_the_demo_without_bubblewrap(tmp_path: Path) -> None:
    """It says so, and goes on with what needs no sandbox."""
    (tmp_path / "nothing").touch()
    bwrap = shutil.which("bwrap")
    covered = [*UNSHARED, "sh", "-c", 'mount --bind nothing "$1" && shift && exec "$@"', "sh"]
    hidden = [*covered, bwrap] if bwrap else []
    done = subprocess.run(
        [*hidden, sys.executable, "-W", "error", str(EXAMPLES / "demo.py")],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    for line in (
        "  ✓ so the command was refused, not run without one",
        "    `handrail doctor` says what is missing; the rest of the tour has no sandbox",
        "  ✓ the REPL was not restarted: it still knows n",
    ):
        assert line in done.stdout.splitlines(), done.stdout


def test_the_fixtures(tmp_path: Path) -> None:
    words = ["-q", "-p", "no:cacheprovider"]
    file = EXAMPLES / "test_with_fixtures.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-c", "/dev/null", str(file)],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_every_program_is_tested_and_listed() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert programs == {*SAID, "test_with_fixtures.py"}
    listed = re.findall(r"^\| \[`(\w+\.py)`\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(programs)
