"""What a command has used is counted for its whole tree, sandboxed or not, here and at a server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from handrail import AsyncWorkspace

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


async def test_what_is_killed_with_its_tree_is_counted(tmp_path: Path) -> None:
    """Also when the command has waited for none of it."""
    work = WORK + "print(flush=True)\ntime.sleep(600)\n"
    async with AsyncWorkspace(tmp_path, sandbox="workspace-write") as ws:
        script = '"$0" -S -c "$1" & wait'
        process = await ws.start(["/bin/sh", "-c", script, sys.executable, work])
        await process.wait_for(r"\n")
        await process.terminate(0)
        info = await process.wait()
    assert info is not None
    assert info.usage is not None
    assert info.usage.user_ms is not None
    assert info.usage.system_ms is not None
    assert 990 <= info.usage.user_ms + info.usage.system_ms <= 1200, info
