"""Real tools through a managed network, in a private world: a listed host is reached, another not.

All of them run in one workspace, in a program of its own (`tests.network.world_tools`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail import Managed, Workspace
from tests.network.node_fetch import NoNode, find_node
from tests.network.world_program import WorldProgram, missing_tools
from tests.network.world_tools import UNLISTED
from tests.support.eventually import LIMIT
from tests.support.processes import nothing_left

pytestmark = [
    pytest.mark.timeout(300),  # a gibibyte, on a busy machine
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
]

#: Tool -> the port of the host that is on no list, and is refused; None: it is not tried.
TOOLS = {
    "slow-events": None,  # minutes of a stream that is mostly silent; the longest begin first
    "upload": None,
    "curl": 443,
    "curl-plain": 80,
    "curl-socks": 443,
    "wget": 443,
    "git": 443,
    "git-ssh": 2222,
    "pip": 443,
    "npm": 443,
    "node-fetch": 443,
    "requests": 443,
    "httpx": 443,
    "java": 443,
    "event-stream": 80,
    "websocket": 8000,
}
#: Of the porter, with all the tools and a gibibyte behind it.
MOST_KILOBYTES = 48 * 1024


@pytest.fixture(scope="module")
def node() -> str:
    """Why there is none is said by the test that needs it."""
    try:
        return find_node()
    except NoNode:
        return ""


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, node: str) -> Iterator[WorldProgram]:
    """It runs the tools of the tests that were chosen."""
    chosen = [
        item.callspec.params["tool"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_tool.__name__
    ]
    names = [name for name in chosen if node or name != "node-fetch"]
    with nothing_left():
        running = WorldProgram(os.getuid(), "tests.network.world_tools", node, *names)
        yield running
        running.end()


@pytest.mark.parametrize("tool", TOOLS)
def test_tool(program: WorldProgram, node: str, tool: str) -> None:
    if tool == "node-fetch" and not node:
        pytest.skip("node is older than 24, and npm could not fetch another")
    result = program.result(tool)
    if "missing" in result:
        pytest.skip(result["missing"])
    port = TOOLS[tool]
    said = f"{result['out']}\n{result['err']}"
    assert "code 0\n" in result["out"], said
    assert result["wanted"] in result["out"], said
    assert "refused 0\n" not in result["out"]
    assert result["denied"] == ([[UNLISTED, port]] if port else []), said
    if port:
        assert f'Network access to "{UNLISTED}:{port}" was blocked' in result["text"]


def test_the_porter_needs_little_memory_for_all_of_it(program: WorldProgram) -> None:
    assert program.result("porter")["kilobytes"] < MOST_KILOBYTES


def test_a_program_without_a_proxy_is_told(ws: Path) -> None:
    script = "import socket; socket.create_connection(('11.22.33.44', 80))"
    with Workspace(ws, network=Managed()) as workspace:
        result = workspace.run(["python3", "-c", script], timeout=LIMIT)
    assert not result.ok
    assert {denial.host for denial in result.denials} == {"11.22.33.44"}
    assert "11.22.33.44" in result.notes[0]
