"""The file of decisions, read while it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from handrail.network import log
from handrail.network.log import NetworkLog
from tests.network.test_records import ONE


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "network.log"
    NetworkLog(str(path)).append([ONE, replace(ONE, kind="end", sent=5)], {"session": "s"})
    first, second = log.read(str(path))
    assert (first["host"], first["session"], second["sent"]) == ("h.example", "s", 5)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "deny  h.example:80  http  (denied)" in log.shown(first)
    assert "5 bytes sent" in log.shown(second)


def test_a_full_file_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LARGEST", 1)
    path = str(tmp_path / "network.log")
    for number in range(3):
        NetworkLog(path).append([replace(ONE, connection=number)])
    assert [line["connection"] for line in log.read(path)] == [2]


def test_following_goes_on_in_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_FOLLOW_SECONDS", 0.001)
    path = str(tmp_path / "network.log")
    following = log.read(path, follow=True)
    for number in range(3):
        writer = threading.Timer(0.01, NetworkLog(path).append, [[replace(ONE, connection=number)]])
        writer.start()
        assert next(following)["connection"] == number
        writer.join()
        if number == 1:
            os.replace(path, path + ".1")
    following.close()


def test_the_command_prints_it(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "handrail", "network", "log"]

    def run(*more: str) -> str:
        return subprocess.run(
            [*command, *more], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run() == ""
    (tmp_path / "handrail").mkdir(mode=0o700, exist_ok=True)
    NetworkLog(str(tmp_path / "handrail" / "network.log")).append([ONE])
    assert "h.example:80" in run()
    assert json.loads(run("--json"))["reason"] == "denied"
