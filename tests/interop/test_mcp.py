"""The real Codex command line does its work through ``handrail mcp``: stdio, and HTTP.

The scripted model is given no other hands: every step is a tool of our server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.codex import INSTALL_LIMIT, Turn, toml_list
from tests.interop.model import Model
from tests.interop.script import Use
from tests.interop.stage import Stage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(INSTALL_LIMIT + 60)]

SERVER = "handrail"
TOKEN = "a-token-for-the-interop-test"
PROGRAM = (
    'def double(n):\n    return n + n + 1\n\nassert double(2) == 4, double(2)\nprint("fine")\n'
)
FIX = """\
*** Begin Patch
*** Update File: program.py
@@
-    return n + n + 1
+    return n + n
*** End Patch
"""


def run(cmd: str, **more: object) -> Use:
    return Use(SERVER, "exec_command", {"cmd": cmd, **more})


#: Find the mistake, mend it, see that it is mended, look at a process and end it.
STEPS = (
    run("python3 program.py"),
    Use(SERVER, "apply_patch", {"patch": FIX}),
    run("python3 program.py"),
    run("echo up; sleep 1000", yield_time_ms=1000),
    Use(SERVER, "list_processes"),
    run("touch ../outside/escaped"),
)


@contextmanager
def over_http(workspace: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "handrail", "mcp", "--http", "127.0.0.1:0", "--cwd", str(workspace)],
        env={**os.environ, "HANDRAIL_MCP_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


def on_stdio(workspace: Path) -> str:
    words = ["-m", "handrail", "mcp", "--cwd", str(workspace)]
    return f"""
[mcp_servers.{SERVER}]
command = "{sys.executable}"
args = {toml_list(words)}
required = true
default_tools_approval_mode = "approve"
"""


def by_url(url: str) -> str:
    return f"""
[mcp_servers.{SERVER}]
url = "{url}"
bearer_token_env_var = "HANDRAIL_MCP_TOKEN"
required = true
default_tools_approval_mode = "approve"
"""


def check(stage: Stage, model: Model, turn: Turn) -> None:
    broken, patched, mended, started, listed, refused = model.script.answers
    assert "AssertionError: 5" in broken.text
    assert "M program.py" in patched.text
    assert "fine" in mended.text
    assert "up" in started.text
    assert "sleep 1000" in listed.text
    assert "Read-only file system" in refused.text
    assert (stage.workspace / "program.py").read_text() == PROGRAM.replace(" + 1", "")
    assert not (stage.outside / "escaped").exists()
    assert turn.items("command_execution") == []
    assert len(turn.items("mcp_tool_call")) == len(STEPS)


def test_codex_works_through_our_tools_on_stdio(stage: Stage) -> None:
    model = stage.set_up(STEPS, config=on_stdio(stage.workspace))
    (stage.workspace / "program.py").write_text(PROGRAM)
    check(stage, model, stage.play(model, {}))


def test_codex_works_through_our_tools_over_http(stage: Stage) -> None:
    stage.workspace.mkdir(parents=True)
    with over_http(stage.workspace) as url:
        stage.workspace.rmdir()
        model = stage.set_up(STEPS, config=by_url(url))
        (stage.workspace / "program.py").write_text(PROGRAM)
        check(stage, model, stage.play(model, {"HANDRAIL_MCP_TOKEN": TOKEN}))
