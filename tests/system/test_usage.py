"""What a command has used is counted for its whole tree, sandboxed or not, here and at a server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from handrail import AsyncWorkspace
from handrail.process.exit_status import Usage

SERVER = f"stdio:{sys.executable} -m handrail serve --listen stdio"
#: 200 MiB of memory, and a second of CPU time in all.
WORK = (
    "import time\n"
    "room = bytearray(200 << 20)\n"
    "room[::4096] = b'x' * len(room[::4096])\n"
    "while time.process_time() < 1: pass\n"
)
SHAPES = {
    "itself": 'exec "$0" -S -c "$1"',
    "below a shell": '"$0" -S -c "$1"; true',
    # The shell between the two ends first, and the work is waited for by whatever inherits it.
    "orphaned": """
        sh -c '"$0" -S -c "$1" & echo $! >pid' "$0" "$1"
        while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done
    """,
}


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
@pytest.mark.parametrize("at", [None, SERVER], ids=["near", "far"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_the_whole_tree_is_counted(
    tmp_path: Path, at: str | None, sandbox: str, shape: str
) -> None:
    async with AsyncWorkspace(tmp_path, at=at, sandbox=sandbox) as ws:
        result = await ws.run(["/bin/sh", "-c", SHAPES[shape], sys.executable, WORK])
    assert result.exit is not None
    assert result.exit.code == 0, result
    used = result.exit.usage
    assert used is not None
    assert used.user_ms is not None
    assert used.system_ms is not None
    assert used.max_rss_bytes is not None
    most = 1500 if shape == "orphaned" else 1200  # the shell that looks around is not for nothing
    assert 990 <= used.user_ms + used.system_ms <= most, used
    assert 190 << 20 < used.max_rss_bytes < 300 << 20, used


#: Where a command is started: sandboxed by bubblewrap, or in a copy of what that has made.
PLACES = {
    "off": ("off", "off"),
    "cold": ("workspace-write", "off"),
    "copy": ("workspace-write", "on"),
}
THEN_WAITS = WORK + "print(flush=True)\ntime.sleep(600)\n"
#: What ``/proc`` leaves out of a second: less than a tick of user and of system time.
LEAST = 1000 - 2 * 10


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("grace", [0, 60])
@pytest.mark.parametrize("script", ['"$0" -S -c "$1" & wait', '("$0" -S -c "$1"); true'])
async def test_what_is_ended_with_its_tree_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, grace: float, script: str
) -> None:
    """Also when the command has waited for none of it, and ends sooner."""
    sandbox, warm = PLACES[place]
    monkeypatch.setenv("HANDRAIL_WARM", warm)
    async with AsyncWorkspace(tmp_path, sandbox=sandbox) as ws:
        process = await ws.start(["/bin/sh", "-c", script, sys.executable, THEN_WAITS])
        await process.wait_for(r"\n")
        await process.terminate(grace)
        info = await process.wait()
    assert info is not None
    _check_second(info.usage)


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 0"])
async def test_what_ends_with_its_sandbox_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("HANDRAIL_WARM", "on")
    script = f'mkfifo up; "$0" -S -c "$1" >up & read line <up; {end}'
    async with AsyncWorkspace(tmp_path, sandbox="workspace-write") as ws:
        result = await ws.run(["/bin/sh", "-c", script, sys.executable, THEN_WAITS])
    assert result.exit is not None
    _check_second(result.exit.usage)


def _check_second(used: Usage | None) -> None:
    assert used is not None
    assert used.user_ms is not None
    assert used.system_ms is not None
    assert used.max_rss_bytes is not None
    assert LEAST <= used.user_ms + used.system_ms <= 1200, used
    assert 190 << 20 < used.max_rss_bytes < 300 << 20, used
