"""Between TERM and KILL a command whose time is over has the same grace wherever it runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from handrail import AsyncWorkspace
from handrail.executor.base import SpawnRequest
from handrail.executor.local import LocalExecutor
from handrail.process import TIMEOUT_GRACE
from handrail.process.exit_status import ExitKind

SERVER = f"stdio:{sys.executable} -m handrail serve --listen stdio"
#: Notes the time of the TERM, by the clock that all processes share, and does not end of it.
DEAF = (
    "import signal, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: open('term', 'w').write(str(time.monotonic())))\n"
    "print('ready', flush=True)\n"
    "while True: time.sleep(600)\n"
)
ARGV = [sys.executable, "-S", "-c", DEAF]


def grace(root: Path) -> float:
    return time.monotonic() - float((root / "term").read_text())


@pytest.mark.parametrize("at", [None, SERVER], ids=["near", "far"])
async def test_a_workspace(tmp_path: Path, at: str | None) -> None:
    async with AsyncWorkspace(tmp_path, at=at, sandbox="off") as ws:
        result = await ws.run(ARGV, timeout=1.5)
    assert result.timed_out
    assert TIMEOUT_GRACE - 0.1 <= grace(tmp_path) < TIMEOUT_GRACE + 3


async def test_a_local_executor_leaves_it_to_the_keeper(tmp_path: Path) -> None:
    executor = LocalExecutor()
    try:
        argv = tuple(ARGV)
        request = SpawnRequest("p", argv, str(tmp_path), {}, timeout=1.5)
        session = await executor.spawn(request)
        info = await session.wait()
    finally:
        await executor.close()
    assert info.kind is ExitKind.TIMED_OUT
    assert TIMEOUT_GRACE - 0.1 <= grace(tmp_path) < TIMEOUT_GRACE + 3


@pytest.mark.parametrize("more", [[], ["--env", "A=1"]], ids=["alone", "with a keeper"])
def test_handrail_run(tmp_path: Path, more: list[str]) -> None:
    run = [sys.executable, "-m", "handrail", "run", "--sandbox", "off", "--timeout", "1.5", *more]
    done = subprocess.run([*run, "--", *ARGV], cwd=tmp_path, timeout=50, check=False)
    assert done.returncode == 124
    assert TIMEOUT_GRACE - 0.1 <= grace(tmp_path) < TIMEOUT_GRACE + 4
