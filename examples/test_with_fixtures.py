"""Tests of a program that runs commands: with a scripted executor, and with a real server.

``pytest examples/test_with_fixtures.py`` runs them.  Of several files of tests a conftest.py has
the line ``pytest_plugins``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from handrail import AgentShell, Question, Workspace
from handrail.testing import FakeExecutor

pytest_plugins = ["handrail.testing.fixtures"]


def version(ws: Workspace) -> str:
    """The program under test."""
    return ws.run("git describe", check=True).stdout.strip()


def test_without_any_process(fake_executor: FakeExecutor) -> None:
    fake_executor.replies("git describe", b"v1.2\n")
    with Workspace("/repo", executor=fake_executor) as ws:
        assert version(ws) == "v1.2"


def test_with_a_real_server(handrail_server: str, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=handrail_server) as ws:
        ws.files.write("a.txt", "hello")
        assert ws.run("cat a.txt").stdout == "hello"


def test_what_an_agent_is_asked(tmp_path: Path) -> None:
    reasons = []

    async def main() -> None:
        def refuse(question: Question) -> bool:
            reasons.append(question.reason)
            return False

        async with AgentShell(tmp_path, approver=refuse) as shell:
            assert not (await shell.call("exec_command", {"cmd": "rm -rf build"})).ok

    asyncio.run(main())
    assert reasons == ["it removes files by force, without asking (rm -f)"]
