"""Commands for left processes, their results and their servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.user import HANDRAIL
from tests.support.eventually import eventually
from tests.support.processes import alive
from tests.support.servers import server_process

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def env(room: Path) -> dict[str, str]:
    return {"HOME": str(room), "XDG_STATE_HOME": f"{room}/state", "XDG_RUNTIME_DIR": ""}


@pytest.fixture
def handrail(env: dict[str, str], room: Path) -> Command:
    def run(*words: str, code: int = 0, **how: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*HANDRAIL, *words],
            check=False,
            env={**os.environ, **env, **how.pop("more", {})},
            cwd=room,
            timeout=50,
            capture_output=True,
            text=True,
            **{"input": "", **how},
        )
        assert done.returncode == code, done
        return done

    return run


def test_a_job_from_its_start_to_the_removal_of_its_result(handrail: Command, room: Path) -> None:
    gate = room / "gate"
    os.mkfifo(gate)
    script = f"for n in 1 2 3 4; do echo line $n; done; read x < {gate}; echo last; exit 3"
    words = ("--sandbox", "off", "--label", "task=42", "--name", "build", "--detach")
    name = handrail("run", *words, "--", "sh", "-c", script).stdout.strip()
    other = handrail("run", "--sandbox", "off", "--detach", "--", "true").stdout.strip()
    (row,) = json.loads(handrail("ps", "--label", "task=42", "--json").stdout)
    assert (row["name"], row["labels"], row["state"]) == ("build", {"task": "42"}, "running")
    assert row["ageSeconds"] >= 0
    assert row["memoryBytes"] > 0
    assert handrail("ps", "-q", "--label", "task=42").stdout == f"{name}-1\n"
    assert "still runs" in handrail("wait", name, "--timeout", "10ms", code=124).stderr
    assert handrail("logs", name, "--tail", "2").stdout == "line 3\nline 4\n"
    assert handrail("logs", name, "--since", "1h").stdout.count("line") == 4
    assert handrail("exec", name, "--", "sh", "-c", "pwd; exit 5", code=5).stdout == f"{room}\n"
    gate.write_text("\n")
    handrail("wait", name, "--timeout", "1m", code=3)
    handrail("wait", other)
    # Its end was shown, so it is listed with --all alone; and its result stays.
    assert json.loads(handrail("ps", "--json").stdout) == []
    (row,) = json.loads(handrail("ps", "--label", "task=42", "--all", "--json").stdout)
    assert (row["state"], row["exitCode"]) == ("exited", 3)
    table = handrail("ps", "--all").stdout.splitlines()
    assert table[0].split()[:4] == ["ID", "STATE", "EXIT", "AGE"]
    assert any("task=42" in line and "build" in line for line in table)

    (server,) = json.loads(handrail("servers", "--json").stdout)["servers"]
    assert server["address"].startswith("unix:")
    assert (server["own"], server["processes"]) == (True, 0)
    stopped = handrail("stop").stdout
    assert f"{server['address']} (pid {server['pid']})" in stopped
    assert "no server" in handrail("stop", code=1).stderr
    assert handrail("servers").stdout.count("\n") == 1

    # The server that ran it is gone.
    assert handrail("logs", name, "-n", "1").stdout == "last\n"
    assert handrail("logs", name, "--since", "0").stdout == ""
    # A command starts it again.
    assert handrail("exec", name, "--", "echo", "more").stdout == "more\n"
    handrail("stop")
    handrail("wait", name, code=3)
    attached = handrail("attach", other)  # which fetches it
    assert (attached.stdout, attached.stderr) == ("", "")
    assert "no workspace" in handrail("logs", other, code=125).stderr
    assert handrail("prune", "--older-than", "3d").stdout == "0 removed, 0B\n"
    removed = json.loads(handrail("prune", "--all", "--json").stdout)["removed"]
    assert [one["what"] for one in removed] == ["result", "workspace"]
    assert "no workspace" in handrail("logs", name, code=125).stderr
    results = room / "state" / "handrail" / "results"
    assert not any(results.iterdir())


def test_several_servers_are_named_and_none_is_chosen_silently(
    handrail: Command, env: dict[str, str], room: Path
) -> None:
    with server_process(None, env=env) as first, server_process(None, env=env) as second:
        asked = handrail("upgrade", code=1).stderr
        assert all(f"{one.url} (pid {one.pid})" in asked for one in (first, second))
        told = handrail("upgrade", "--at", first.url).stdout
        assert told.startswith(f"{first.url}: server {first.pid} has handed over to server ")
        pid = int(told.split()[-1])
        first.wait()
        rows = json.loads(handrail("servers", "--json").stdout)["servers"]
        assert {row["address"]: row["pid"] for row in rows} == {
            first.url: pid,
            second.url: second.pid,
        }
        assert "processes" not in handrail("stop", first.url).stdout
        keeper = second.keeper()
        gate = room / "gate"
        os.mkfifo(gate)
        start = ("run", "--sandbox", "off", "--detach", "--at", second.url, "--")
        name = handrail(*start, "sh", "-c", f"read x < {gate}").stdout.strip()
        second.process.kill()
        second.wait()
        eventually(lambda: f"{second.url} is no longer running, and" in handrail("servers").stderr)
        assert handrail("prune").stdout == "0 removed, 0B\n"  # its keeper waits for the next server
        os.kill(keeper, signal.SIGKILL)
        eventually(lambda: not alive(keeper))
        assert "has ended is not known" in handrail("kill", name, code=125).stderr
        gate.write_text("\n")
        assert f"no longer running: {second.url};" in handrail("servers").stderr
        assert "it does not run" in handrail("prune").stdout
        assert handrail("servers").stderr == ""


def test_a_crashed_server_of_the_user_is_started_again(handrail: Command, room: Path) -> None:
    gate = room / "gate"
    os.mkfifo(gate)
    start = ("run", "--sandbox", "off", "--detach", "--", "sh", "-c", f"read x < {gate}; exit 8")
    name = handrail(*start).stdout.strip()
    (server,) = json.loads(handrail("servers", "--json").stdout)["servers"]
    os.kill(server["pid"], signal.SIGKILL)
    eventually(lambda: not alive(server["pid"]))
    (row,) = json.loads(handrail("ps", "--json").stdout)
    assert row["state"] == "running"
    gate.write_text("\n")
    handrail("wait", name, code=8)
    assert "processes" not in handrail("stop").stdout


def test_a_result_is_bounded_by_the_environment(handrail: Command) -> None:
    more = {"HANDRAIL_RESULTS_EACH": "2MiB"}
    start = ("run", "--sandbox", "off", "--detach", "--", "seq", "1", "1000000")
    name = handrail(*start, more=more).stdout.strip()
    handrail("wait", name, more=more)
    handrail("stop")
    logs = handrail("logs", name)
    assert logs.stdout.startswith("1\n2\n")
    assert logs.stdout.endswith("999999\n1000000\n")
    assert "bytes of output are no longer kept" in logs.stderr
    assert len(logs.stdout) <= 2 * 1024 * 1024
    bad = handrail("serve", more={"HANDRAIL_RESULTS_KEEP": "soon"}, code=1).stderr
    assert "HANDRAIL_RESULTS_KEEP: 'soon' is no duration" in bad
    handrail("prune", "--all")
