"""What a client sees when the keeper is stopped, dies, or was somebody else's before."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

pytestmark = pytest.mark.system

LIMIT = 20.0


@contextmanager
def serving(state: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    argv = [sys.executable, "-m", "handrail", "serve", "--state-dir", str(state), *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server, server.stdout.readline().strip()
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            server.wait(LIMIT)


class Client:
    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.ids = 0
        self.notes: list[dict[str, Any]] = []
        self.call("initialize", clientName="test", resumeSecret=None)
        ws.send('{"method":"initialized"}')

    def call(self, method: str, **params: Any) -> Any:
        self.ids += 1
        self.ws.send(json.dumps({"id": self.ids, "method": method, "params": params}))
        while (message := json.loads(self.ws.recv(timeout=LIMIT))).get("id") != self.ids:
            self.notes.append(message)
        assert "error" not in message, message
        return message["result"]

    def start(self, name: str, *argv: str) -> None:
        env = {"PATH": os.environ["PATH"]}
        more = {"cwd": "file:///", "env": env, "tty": False}
        self.call("process/start", processId=name, argv=list(argv), **more)

    def until(self, method: str) -> dict[str, Any]:
        while True:
            for note in self.notes:
                if note.get("method") == method:
                    return note["params"]
            self.notes.append(json.loads(self.ws.recv(timeout=LIMIT)))

    def said(self) -> int:
        return int(base64.b64decode(self.until("process/output")["chunk"]))


def keeper_of(server: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    (keeper,) = [int(pid) for pid in children]
    return keeper


def is_gone(pid: int) -> bool:
    """Ends, or has ended and waits for its parent."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        import select

        return bool(select.select([fd], [], [], LIMIT)[0])
    finally:
        os.close(fd)


def test_a_found_keeper_has_room_for_new_children(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(state, "--on-stop", "keep") as (server, url), connect(url, proxy=None) as ws:
        client = Client(ws)
        client.start("old", "sh", "-c", "echo $$; exec sleep 600")
        old = client.said()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT) == 0
    assert Path(f"/proc/{old}").exists()
    with serving(state) as (_, url), connect(url, proxy=None) as ws:
        client = Client(ws)
        client.start("new", "true")
        assert client.until("process/exited")["exitCode"] == 0
    assert is_gone(old)  # this server stopped with its default, which ends everything


def test_a_keeper_that_does_not_answer_cannot_hold_up_the_end(tmp_path: Path) -> None:
    with serving(tmp_path / "state") as (server, _url):
        keeper = keeper_of(server)
        os.kill(keeper, signal.SIGSTOP)
        try:
            server.send_signal(signal.SIGTERM)
            assert server.wait(LIMIT) == 1
        finally:
            os.kill(keeper, signal.SIGKILL)
    assert is_gone(keeper)
