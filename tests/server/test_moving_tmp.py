"""Sandboxes made while other programs create and remove names in what they cover."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail.process.keeper_client.answers import Spawned
from handrail.process.spec import ProcessSpec
from handrail.sandbox import plan_retries
from tests.support.clients import MemoryClient, b64
from tests.support.eventually import LIMIT
from tests.support.servers import Served, serving

#: Until stdin ends: repositories and sockets below /tmp, each there for a moment.
CHURN = """
import os, select, shutil, socket, sys
number = 0
while not select.select([0], [], [], 0)[0]:
    number += 1
    name = f"/tmp/ssh-churn-{os.getpid()}-{number % 8}"
    os.makedirs(name + "/a/.git/refs")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(name + "/socket")
        os.rename(name, name + "-moved")
    shutil.rmtree(name + "-moved")
    if number == 8:
        print("going", flush=True)
"""


def sandbox(ws: Path) -> dict[str, Any]:
    kinds = (("root", "read"), ("project_roots", "write"), ("slash_tmp", "write"))
    entries = [
        {"path": {"type": "special", "value": {"kind": kind}}, "access": access}
        for kind, access in kinds
    ]
    return {
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": "restricted",
        },
        "cwd": ws.as_uri(),
        "workspaceRoots": [ws.as_uri()],
        "windowsSandboxLevel": "disabled",
    }


def call(client: MemoryClient, what: str, ws: Path, key: str = "p") -> tuple[str, dict[str, Any]]:
    """A call and its params."""
    given = sandbox(ws)
    if what == "fs/writeFile":
        return what, {"path": (ws / key).as_uri(), "dataBase64": b64(b"new"), "sandbox": given}
    return what, client.start_params(key, "/bin/true", cwd=ws.as_uri(), sandbox=given)


@contextmanager
def before_each_start(served: Served, act: Callable[[], None]) -> Iterator[list[ProcessSpec]]:
    """Act after a sandbox was planned and before it is set up; the specs that were started."""
    launcher, started = served.server.launcher, []
    spawn = launcher.spawn

    def acting(spec: ProcessSpec, note: bytes = b"") -> Coroutine[Any, Any, Spawned]:
        act()
        started.append(spec)
        return spawn(spec, note)

    launcher.spawn = acting  # type: ignore[method-assign]
    try:
        yield started
    finally:
        del launcher.spawn


class Replaced:
    """A directory that is removed and followed by another one, under another name, when asked."""

    def __init__(self, make: Callable[[], Path]) -> None:
        self._make = make
        self.now = make()

    def __call__(self) -> None:
        shutil.rmtree(self.now)
        self.now = self._make()


@pytest.mark.parametrize("what", ["process/start", "fs/writeFile"])
async def test_what_vanishes_from_a_shared_tmp_fails_no_call(what: str, ws: Path) -> None:
    trusted = Replaced(lambda: Path(tempfile.mkdtemp(prefix="ssh-", dir="/tmp")))
    try:
        async with serving() as served:
            client = await served.client()
            method, params = call(client, what, ws)
            with before_each_start(served, trusted) as started:
                await client.call(method, **params)
            # The second try leaves out what has come since the first; other tests work in the same
            # directory, and what vanishes of theirs may cost another.
            assert len(started) < plan_retries.MOST
    finally:
        shutil.rmtree(trusted.now)


@pytest.mark.parametrize("what", ["process/start", "fs/writeFile"])
async def test_a_workspace_that_never_rests_is_refused_in_the_end(what: str, ws: Path) -> None:
    def repository() -> Path:
        made = Path(tempfile.mkdtemp(prefix="project-", dir=ws))
        (made / ".git" / "refs").mkdir(parents=True)
        return made

    moving = Replaced(repository)
    async with serving() as served:
        client = await served.client()
        method, params = call(client, what, ws)
        with before_each_start(served, moving) as started:
            code, text = await client.refused(method, params)
        assert (code, len(started)) == (-32602, plan_retries.MOST)
        assert "failed to prepare" in text
        assert "project-" in text or "No such file" in text
        await client.call(method, **params)  # it rests


@pytest.fixture
def churn() -> Iterator[None]:
    program = subprocess.Popen(
        [sys.executable, "-c", CHURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == b"going\n"
        yield
    finally:
        program.stdin.close()
        assert program.wait(LIMIT) == 0
        program.stdout.close()
    mine = f"ssh-churn-{program.pid}-"
    assert not [name for name in os.listdir("/tmp") if name.startswith(mine)]


@pytest.mark.usefixtures("churn")
async def test_calls_under_a_tmp_that_changes_all_the_time(ws: Path) -> None:
    async with serving() as served:
        client = await served.client()
        for number in range(8):
            for what in ("process/start", "fs/writeFile"):
                method, params = call(client, what, ws, f"p{number}")
                await client.call(method, **params)
