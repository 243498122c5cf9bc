"""A server that is killed leaves no sandbox that waits, and one in use goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from handrail.keeper.proc_children import children_of
from handrail.sandbox.profile import PROTECTED_NAMES
from tests.sandbox.arena import Wire
from tests.sandbox.warm.conftest import Warm
from tests.sandbox.warm.test_reach import alive, outer_processes
from tests.support.eventually import eventually
from tests.support.processes import nothing_left, reaping
from tests.support.servers import ServerProcess
from tests.system.permissions import sandbox


class Client(Wire):
    """Starts sandboxed commands one after another."""

    count = 0

    def start(self, ws: Path, *argv: str, tty: bool = False) -> str:
        assert "result" in self.call("process/start", self._asked(ws, argv, tty))
        return f"p{self.count}"

    def ask(self, ws: Path, *argv: str) -> None:
        """Start it without waiting for the answer."""
        params = self._asked(ws, argv, tty=False)
        text = json.dumps({"id": f"a{self.count}", "method": "process/start", "params": params})
        self._socket.send(text)

    def _asked(self, ws: Path, argv: tuple[str, ...], tty: bool) -> dict[str, Any]:
        self.count += 1
        return {
            "processId": f"p{self.count}",
            "argv": list(argv),
            "cwd": ws.as_uri(),
            "env": {"PATH": "/usr/bin:/bin"},
            "tty": tty,
            "arg0": None,
            "sandbox": sandbox(ws),
        }

    def ended(self, process: str) -> int | None:
        wanted = {"processId": process, "afterSeq": 0, "maxBytes": 1 << 20, "waitMs": 1000}
        page = eventually(
            lambda: (found := self.call("process/read", wanted)["result"])["closed"] and found,
            "it ends",
        )
        code: int | None = page["exitCode"]
        return code


def two_sandboxes(client: Client, keeper: int, ws: Path) -> set[int]:
    """Start commands until two sandboxes are there: other programs make plans false, too."""
    while len(found := outer_processes(keeper)) < 2:
        assert client.ended(client.start(ws, "/bin/true")) == 0
        with contextlib.suppress(AssertionError):
            eventually(lambda: len(outer_processes(keeper)) >= 2, limit=2)
    return found


@pytest.mark.parametrize("killed", ["server", "keeper", "both"])
def test_killed_before_they_cover_missing_names(
    warm: Warm, folder: Path, tmp_path: Path, killed: str
) -> None:
    """Nothing of them is left, and no name is made."""
    server = ServerProcess(tmp_path / "state")
    with nothing_left(), reaping(lambda: server.pid):
        try:
            client = Client(server.url)
            keeper = server.keeper()
            waiting = two_sandboxes(client, keeper, folder)
            inside = {pid for one in waiting for pid in children_of(one)}
            inside |= waiting
            if killed == "both":
                os.kill(keeper, signal.SIGSTOP)  # it ends none
            if killed != "keeper":
                os.kill(server.pid, signal.SIGKILL)
                server.wait()
            if killed != "server":
                os.kill(keeper, signal.SIGKILL)
            eventually(lambda: not any(map(alive, inside)), "they end")
            if killed == "server":  # a keeper would wait for the next one
                os.kill(keeper, signal.SIGKILL)
            assert os.listdir(folder) == []
        finally:
            server.stop()
            server.close()


@pytest.mark.parametrize("killed", ["server", "keeper", "both"])
@pytest.mark.parametrize("missing", [False, True])
def test_killed_while_copies_are_made(
    warm: Warm, folder: Path, tmp_path: Path, killed: str, missing: bool
) -> None:
    """At some moment of their making: no command runs twice, and none of their processes waits."""
    ws, state = folder / "ws", tmp_path / "state"
    ws.mkdir()
    for name in () if missing else PROTECTED_NAMES:
        (ws / name.decode()).mkdir()
    before = sorted(os.listdir(ws))
    for turn in range(4):
        server = ServerProcess(state, env={"HANDRAIL_WARM": "on"})
        with nothing_left(), reaping(lambda server=server: server.pid):
            try:
                client = Client(server.url)
                keeper = server.keeper()
                assert client.ended(client.start(ws, "/bin/true")) == 0
                for number in range(4):
                    word = f"echo x >> log{number}; touch .git/x; exec sleep 0.2"
                    client.ask(ws, "/bin/sh", "-c", word)
                time.sleep(turn * 0.004)
                if killed == "both":
                    os.kill(keeper, signal.SIGSTOP)
                if killed != "keeper":
                    os.kill(server.pid, signal.SIGKILL)
                    server.wait()
                if killed != "server":
                    os.kill(keeper, signal.SIGKILL)
                else:
                    eventually(lambda keeper=keeper: not outer_processes(keeper), "they end")
                    os.kill(keeper, signal.SIGKILL)
            finally:
                server.stop()
                server.close()
        logs = sorted(ws.glob("log*"))
        assert [log.read_text() for log in logs] == ["x\n"] * len(logs)
        for log in logs:
            log.unlink()
    with nothing_left():  # the next one removes what they have left
        server = ServerProcess(state)
        client = Client(server.url)
        assert client.ended(client.start(ws, "/bin/true")) == 0
        client.close()
        server.stop()
        server.close()
    assert sorted(os.listdir(ws)) == before


@pytest.mark.parametrize("both", [False, True])
def test_killed(warm: Warm, folder: Path, tmp_path: Path, both: bool) -> None:
    """``both``: with its keeper."""
    ws, state = folder / "ws", tmp_path / "state"
    for name in (".git", ".agents", ".codex"):  # without placeholders they wait longer
        (ws / name).mkdir(parents=True)
    server = ServerProcess(state)
    with nothing_left(), reaping(lambda: server.pid):
        try:
            client = Client(server.url)
            keeper = server.keeper()
            two_sandboxes(client, keeper, ws)
            used = client.start(ws, "/bin/sleep", "1000")
            waiting = two_sandboxes(client, keeper, ws)
            if both:
                os.kill(keeper, signal.SIGSTOP)  # it tells no server, and ends none
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            if both:
                os.kill(keeper, signal.SIGKILL)
                stubs = {pid for one in waiting for pid in children_of(one)}
                eventually(lambda: len([pid for pid in stubs if children_of(pid)]) <= 1)
            else:
                eventually(lambda: len(outer_processes(keeper)) <= 1, "the others end")
            server.close()
            server = ServerProcess(state)
            if not both:
                client = Client(server.url, client.session)
                answer = client.call("process/read", {"processId": used, "afterSeq": 0})
                assert answer["result"]["exited"] is False
        finally:
            server.stop()
            server.close()


#: Is killed when bubblewrap has just started a child for a template.
KILLED = """
import os, signal, sys
from handrail import Workspace
from handrail.keeper.proc_children import children_of
from handrail.sandbox.warm import template

def start(*args):
    pid = begin(*args)
    while not children_of(pid):
        pass
    os.kill(os.getpid(), signal.SIGKILL)

begin, template._start = template._start, start
with Workspace(sys.argv[1]) as ws:
    ws.run("true")
"""


def test_killed_while_a_template_is_made(warm: Warm, folder: Path) -> None:
    """No keeper sees to that bubblewrap: it ends by itself."""
    argv = [sys.executable, "-c", KILLED, str(folder)]
    env = {**os.environ, "HANDRAIL_WARM": "on"}
    with nothing_left():
        for _ in range(5):
            assert subprocess.run(argv, env=env, check=False).returncode == -signal.SIGKILL
