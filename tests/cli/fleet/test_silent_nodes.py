"""Nodes that do not answer are named by ``ls``, ``sweep``, ``down`` and ``logs``, not left out."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from unittest.mock import AsyncMock, Mock

import pytest

from handrail.cli.commands import fleet as command
from handrail.cli.fleet import fleet_options
from handrail.fleet import FleetError, FleetStatus, NodeInfo

HOSTS = ["ws://a", "ws://b"]


def run(
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[Namespace], int],
    states: dict[str, str],
    **given: object,
) -> int:
    """The exit code of a command on nodes in these states."""

    async def logs(node: str, lines: int) -> str:
        if states[node] != "ready":
            raise FleetError(f"node {node} tells no logs")
        return f"log of {node}"

    nodes = [NodeInfo(id=name, state=state, error="why") for name, state in states.items()]  # type: ignore[arg-type]
    status = FleetStatus(name="x", state="degraded", nodes=nodes, workspaces=0)
    fleet = Mock(
        status=AsyncMock(return_value=status),
        workspaces=AsyncMock(return_value=[]),
        sweep=AsyncMock(return_value=2),
        down=AsyncMock(),
        close=AsyncMock(),
        logs=logs,
    )
    monkeypatch.setattr(fleet_options, "joined", AsyncMock(return_value=fleet))
    args = {"on": HOSTS, "name": None, "json": False, "owner": None, "label": None}
    return use(Namespace(**{**args, "node": None, "lines": 5, **given}))


@pytest.mark.parametrize("use", [command.run_ls, command.run_sweep, command.run_down])
@pytest.mark.parametrize("state", ["joining", "unreachable", "lost"])
def test_a_silent_host(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    use: Callable[[Namespace], int],
    state: str,
) -> None:
    assert run(monkeypatch, use, {"a": "ready", "b": state}) == 0
    assert capsys.readouterr().err == "handrail: b does not answer: why\n"
    assert run(monkeypatch, use, {"a": state, "b": state}) == 125
    told = capsys.readouterr()
    assert (told.out, told.err.count("does not answer")) == ("", 2)


def test_a_node_that_ray_says_is_lost_has_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"on": ["ray:auto"], "name": "x"}
    assert run(monkeypatch, command.run_ls, {"a": "ready", "b": "lost"}, **where) == 0
    assert capsys.readouterr().err == ""


def test_logs_of_the_nodes_that_are_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command.run_logs, {"a": "lost", "b": "ready"}, json=True) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"node": "b", "text": "log of b"}
    assert told.err == "handrail: node a tells no logs\n"
    assert run(monkeypatch, command.run_logs, {"a": "lost", "b": "ready"}, node="a") == 125
    assert "node a tells no logs" in capsys.readouterr().err
