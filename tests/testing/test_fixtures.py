"""The fixtures that users' tests can have."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from handrail.executor.base import SpawnRequest
from handrail.executor.remote import RemoteExecutor
from handrail.testing import FakeExecutor
from handrail.testing.fixtures import fake_executor, handrail_server

__all__ = ["fake_executor", "handrail_server"]


def test_a_server_of_its_own(handrail_server: str) -> None:
    async def main() -> bytes:
        executor = await RemoteExecutor.connect(handrail_server)
        try:
            session = await executor.spawn(SpawnRequest("p", ("/bin/echo", "hello"), "/", {}))
            return b"".join([event.data async for event in session.subscribe_output()])
        finally:
            await executor.close()

    assert asyncio.run(main()) == b"hello\n"


def test_a_project_that_has_read_the_documentation(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["handrail.testing.fixtures"]\n')
    (tmp_path / "test_theirs.py").write_text(
        "from handrail import Workspace\n"
        "def test_it(fake_executor):\n"
        "    fake_executor.replies('make', b'built')\n"
        "    with Workspace(executor=fake_executor) as ws:\n"
        "        assert ws.run('make').stdout == 'built'\n"
        "        ws.files.write('notes', 'x')\n"
        "        assert ws.files.read('notes') == 'x'\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, check=False, text=True, timeout=50
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_scripted_executor(fake_executor: FakeExecutor) -> None:
    async def main() -> int | None:
        fake_executor.replies("true")
        session = await fake_executor.spawn(SpawnRequest("p", ("true",), "/", {}))
        return (await session.wait()).code

    assert asyncio.run(main()) == 0
