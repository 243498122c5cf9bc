"""The ways a client finds a server, as ``docs/codex.md`` describes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.codex import INSTALL_LIMIT, toml_list
from tests.interop.script import Run
from tests.interop.stage import Stage
from tests.wire.servers import WebSocketServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(INSTALL_LIMIT + 60)]

SERVE = [sys.executable, "-m", "handrail", "serve", "--listen"]
TOKEN = "a token for one test"
NO_SERVER = "No usable execution environment"
#: Nobody listens there.
DEAD = "ws://127.0.0.1:1"
WHERE = (Run("echo $HANDRAIL_INTEROP_WHERE"),)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that wants to see a token."""
    path = tmp_path_factory.mktemp("token") / "token"
    path.write_text(TOKEN)
    auth = ["--ws-auth", "capability-token", "--ws-token-file", str(path)]
    command = ["env", "HANDRAIL_INTEROP_WHERE=there", *SERVE, "ws://127.0.0.1:0", *auth]
    server = WebSocketServer(command)
    yield server.url
    assert server.stop() == []


def environments(home: Path, *lines: str) -> None:
    """Tell the client of one environment, and that it is the only one."""
    text = ('default = "there"', "include_local = false", "[[environments]]", 'id = "there"')
    (home / "environments.toml").write_text("\n".join((*text, *lines)))


def test_token_from_environments_toml(guarded: str, stage: Stage) -> None:
    model = stage.set_up(WHERE)
    environments(stage.home, f'url = "{guarded}"', f'auth_bearer_token = "{TOKEN}"')
    stage.play(model, {})
    assert model.script.answers[0].output == "there\n"


@pytest.mark.parametrize("token", ["", 'auth_bearer_token = "another"'], ids=["none", "wrong"])
def test_nothing_runs_without_the_token(guarded: str, stage: Stage, token: str) -> None:
    model = stage.set_up(WHERE)
    environments(stage.home, f'url = "{guarded}"', token)
    stage.play(model, {})
    assert NO_SERVER in model.script.answers[0].text


def test_nothing_runs_when_the_server_of_the_variable_is_away(stage: Stage) -> None:
    model = stage.set_up(WHERE)
    stage.play(model, {"CODEX_EXEC_SERVER_URL": DEAD, "HANDRAIL_INTEROP_WHERE": "here"})
    assert NO_SERVER in model.script.answers[0].text


def test_nothing_runs_here_when_the_only_environment_is_away(stage: Stage) -> None:
    model = stage.set_up(WHERE)
    environments(stage.home, f'url = "{DEAD}"')
    stage.play(model, {"HANDRAIL_INTEROP_WHERE": "here"})
    assert NO_SERVER in model.script.answers[0].text


def test_the_file_wins_over_the_variable(stage: Stage) -> None:
    model = stage.set_up(WHERE)
    program = f'program = "{sys.executable}"'
    args = f"args = {toml_list([*SERVE[1:], 'stdio'])}"
    environments(stage.home, program, args, 'env = { HANDRAIL_INTEROP_WHERE = "there" }')
    stage.play(model, {"CODEX_EXEC_SERVER_URL": DEAD})
    assert model.script.answers[0].output == "there\n"


def test_a_server_on_stdio_ends_with_its_client(stage: Stage) -> None:
    running = Run("echo $$; exec sleep 600", yield_ms=250)
    model = stage.set_up((running, Run("setsid sleep 600 > /dev/null 2>&1 & echo $!")))
    environments(
        stage.home, f'program = "{sys.executable}"', f"args = {toml_list([*SERVE[1:], 'stdio'])}"
    )
    stage.play(model, {})  # which looks for what is left
    for answer in model.script.answers:
        assert not os.path.exists(f"/proc/{answer.output.strip()}")
