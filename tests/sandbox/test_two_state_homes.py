"""Two programs of one user with different state homes in one workspace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.eventually import LIMIT


def start(ws: Path, state: Path, script: str) -> subprocess.Popen[str]:
    """A sandboxed script that runs up to its ``read``."""
    command = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "handrail",
            "sandbox",
            "--",
            "sh",
            "-c",
            f"echo up; read x; {script}",
        ],
        cwd=ws,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "up\n"
    return command


def test_the_first_to_end_leaves_the_covers_of_the_second(ws: Path, tmp_path: Path) -> None:
    first = start(ws, tmp_path / "a", "true")
    second = start(ws, tmp_path / "b", "mkdir .git && echo made; touch mine")
    first.communicate("\n", timeout=LIMIT)
    assert first.returncode == 0
    said, _ = second.communicate("\n", timeout=LIMIT)
    assert "made" not in said
    assert [path.name for path in ws.iterdir()] == ["mine"]
