"""``handrail fleet status``, ``ls``, ``sweep``, ``metrics``, and the options of ``up``."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from handrail.cli.fleet import fleet_options
from handrail.errors import UsageError
from handrail.fleet import Fleet
from tests.cli.fleet.conftest import cli


def test_a_workspace_that_was_left_is_listed_and_swept(where: list[str]) -> None:
    async def leave() -> str:
        fleet = Fleet(where[1:], owner="me")
        await fleet.__aenter__()
        labels = {"for": "test"}
        space = await fleet.workspace(cpus=2, memory="1MiB", sandbox="off", labels=labels)
        await space.start("sleep 600")
        await fleet.detach()
        return space.id

    left = asyncio.run(leave())
    status = json.loads(cli("status", *where, "--json").stdout)
    assert (status["state"], status["workspaces"], len(status["nodes"])) == ("up", 1, 2)
    assert {node["freeCpus"] for node in status["nodes"]} == {98, 100}
    assert all(node["serverPid"] and node["keeperPid"] for node in status["nodes"])
    (line,) = cli("ls", *where, "--json").stdout.splitlines()
    listed = json.loads(line)
    assert (listed["id"], listed["owner"], listed["running"]) == (left, "me", 1)
    assert cli("ls", *where, "--label", "for=another", "--json").stdout == ""
    assert left in cli("ls", *where, "--owner", "me").stdout
    assert "2 of 2 nodes ready, 1 workspace\n" in cli("status", *where).stdout
    series = cli("metrics", *where).stdout
    assert 'handrail_fleet_nodes{state="ready"} 2' in series
    assert cli("sweep", *where).stdout == "1 workspace ended\n"
    assert json.loads(cli("sweep", *where, "--json").stdout) == {"ended": 0}
    assert cli("ls", *where, "--json").stdout == ""


def test_an_address_without_a_cluster_is_told_at_once() -> None:
    for where in ("ray:127.0.0.1:1", "ray://127.0.0.1:1"):
        done = cli("status", "--on", where, "--name", "x")
        assert done.returncode == 125
        assert f"no Ray cluster at {where}: " in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status", "--on", "nowhere"], 2),
        (["status", "--on", "ray:auto"], 2),
        (["up", "--on", "ws://127.0.0.1:1", "--name", "x"], 2),
        (["ls", "--on", "ws://127.0.0.1:1", "--label", "x"], 2),
        (["up", "--nodes", "0"], 2),
        (["logs", "--lines", "x"], 2),
        (["run", "--", "true"], 2),
        (["run", "--on", "ws://127.0.0.1:1", "--tasks", "x", "--retries", "-1", "--", "true"], 2),
        (["run", "--on", "ws://127.0.0.1:1", "--tasks", "x", "--cpus", "-1", "--", "true"], 2),
        (["walk"], 2),
    ],
)
def test_wrong_usage(words: list[str], code: int) -> None:
    done = cli(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (fleet_options.share, "cpus=8,memory=16GiB", {"cpus": 8.0, "memory": "16GiB"}),
        (fleet_options.share, "memory=1k", {"memory": "1k"}),
        (fleet_options.shares, "4", 4),
        (fleet_options.shares, "2:50", (2, 50)),
        (fleet_options.shares, "nodes", "nodes"),
    ],
)
def test_the_options_of_up(parse: Any, text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "given"),
    [
        (fleet_options.share, "cpus=x"),
        (fleet_options.share, "cpus=1,cpus=2"),
        (fleet_options.share, "disk=1"),
        (fleet_options.share, "memory=much"),
        (fleet_options.shares, "5:2"),
        (fleet_options.shares, "-1"),
        (fleet_options.quotas, ["lab"]),
        (fleet_options.quotas, ["lab:gpus=1"]),
        (fleet_options.labels, ["zone"]),
    ],
)
def test_options_that_make_no_sense(parse: Any, given: Any) -> None:
    with pytest.raises(UsageError):
        parse(given)


def test_quotas_of_several_tenants() -> None:
    given = ["lab:workspaces=9,memory=1TiB", "lab:cpus=5", "guests:workspaces=1"]
    assert fleet_options.quotas(given) == {
        "lab": {"workspaces": 9.0, "memory": "1TiB", "cpus": 5.0},
        "guests": {"workspaces": 1.0},
    }


def test_hosts_and_ray_are_told_apart() -> None:
    def where(*on: str) -> object:
        return fleet_options.where(argparse.Namespace(name="x", on=list(on) or None))

    assert where() == "ray:auto"
    assert where("ray://box:10001") == "ray://box:10001"
    assert where("ssh://a", "wss://b") == ["ssh://a", "wss://b"]
    with pytest.raises(UsageError):
        where("ray:auto", "ssh://a")


def test_other_commands_import_nothing_of_it() -> None:
    code = (
        "import sys; from handrail.cli import app\n"
        "try: app.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('handrail.fleet', 'handrail.cli.fleet',"
        " 'handrail.cli.commands.fleet', 'ray'))])"
    )
    for words in (["--help"], ["ps", "--json"], ["servers", "--json"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "[]", words
