"""A workspace at the end of every way there is: the same session of a user on each."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import ExitKind, Output, WaitReason, Workspace
from tests.executor.sshd import no_sshd, sshd
from tests.support.servers import server_process

Way = Callable[[Path, pytest.MonkeyPatch], Any]


@contextmanager
def websocket(base: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    with server_process(base) as server:
        yield server.url


@contextmanager
def unix(base: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    with server_process(base, listen=f"unix:{base}/s") as server:
        yield server.url


@contextmanager
def ssh(base: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    why = no_sshd()
    if why is not None:
        pytest.skip(why)
    with asyncio.Runner() as runner:
        opened = sshd(base)
        way = runner.run(opened.__aenter__())
        try:
            # What a user has in ~/.ssh/config, and `handrail` in the PATH over there.
            script = base / "ssh"
            given = f'{shlex.join(way.ssh)} "${{@:1:$#-1}}" {shlex.quote(way.proxy)}'
            script.write_text(f'#!/bin/bash\nPATH="${{PATH#*:}}"\nexec {given}\n')
            script.chmod(0o700)
            patch.setenv("PATH", str(base), prepend=":")
            yield way.url
        finally:
            runner.run(opened.__aexit__(None, None, None))


@pytest.fixture(params=[websocket, unix, ssh])
def at(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    base = tmp_path / "way"
    base.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    with request.param(base, monkeypatch) as url:
        yield url


def test_a_day_at_another_machine(at: str, tmp_path: Path) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    with Workspace(root, at=at, sandbox="off", detach_ttl=60) as ws:
        heard: list[Output] = []
        assert ws.run("echo out; exit 3", on_output=heard.append).exit_code == 3
        assert [output.text for output in heard] == ["out\n"]
        end = ws.run("sleep 600", timeout=0.1).exit
        assert end is not None
        assert end.kind is ExitKind.TIMED_OUT
        early = ws.run("echo early; sleep 600", wait=0.1)
        assert early.process is not None
        early.process.terminate()
        assert ws.run("cat; echo '<'", input="typed", tty=True).exit_code == 0
        assert ws.run(["printf", "%s", b"\xff"], text=False).stdout == b"\xff"
        ws.files.write("notes.txt", "hi")
        repl = ws.start([sys.executable, "-q"], tty=True, env={"PYTHON_BASIC_REPL": "1"})
        assert repl.wait_for(">>> $", timeout=20)
        repl.send("6 * 7\n")
        assert repl.wait_for(r"^4\d\b", timeout=20).match == "42"
        assert repl.wait_for("never", timeout=0.05).reason is WaitReason.DEADLINE
        assert [process.id for process in ws.processes] == [repl.id]
        left = ws.detach()
    with Workspace.attach(left) as back:
        assert back.files.read("notes.txt") == "hi"
        (again,) = back.processes
        assert again.wait_for("42", timeout=20)  # what is retained counts for a new handle
        again.send("exit(5)\n")
        assert again.wait_for("never", timeout=20).reason is WaitReason.EXIT
        assert [(one.id, one.running) for one in back.processes] == [(again.id, False)]
