"""Which variables commands get: near, far, from the command line, and for an agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from handrail import AgentShell, AsyncWorkspace, UsageError, Workspace, run
from handrail.process.env_policy import CORE, Inherit, build, without_secrets
from handrail.secret_variables import OUR_EXCLUDES, PEER_EXCLUDES, looks_secret
from handrail.unified_exec import settings as unified
from tests.cli.user import HANDRAIL
from tests.executor import places
from tests.executor.places import why_not

SECRET = {
    "OPENAI_API_KEY": "v1",
    "AWS_SESSION_TOKEN": "v2",
    "azure_client_secret": "v3",
    "PGPASSWORD": "v4",
    "SMTP_PASS": "v5",
    "GOOGLE_APPLICATION_CREDENTIALS": "v6",
    "DATABASE_URL": "v7",
    "GITHUB_PAT": "v8",
    "SENTRY_DSN": "v9",
}
PLAIN = {"EDITOR": "vi", "AWS_REGION": "eu", "COMPASS": "n", "PATTERN": "p", "SSH_AUTH_SOCK": "/s"}


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRET | PLAIN).items():
        monkeypatch.setenv(name, value)


def names(env: str) -> set[str]:
    return {line.partition("=")[0] for line in env.splitlines()}


def test_what_looks_like_a_secret_is_not_inherited(at: str | None, tmp_path: Path) -> None:
    with Workspace(tmp_path, at=at, sandbox="off") as ws:
        found = names(ws.run("env").stdout)
        assert PLAIN.keys() <= found
        assert not SECRET.keys() & found
        given = ws.run('echo "$PGPASSWORD"', env={"PGPASSWORD": "mine"})
        assert given.stdout == "mine\n"  # it was named
    with Workspace(tmp_path, at=at, sandbox="off", inherit_env="core", env={"A": "1"}) as ws:
        found = names(ws.run("env").stdout)
        assert {"PATH", "HOME", "A"} <= found
        assert found <= CORE | {"A", "PWD", "SHLVL", "_"}
    with Workspace(tmp_path, at=at, sandbox="off", inherit_env="none", env={"A": "1"}) as ws:
        found = names(ws.run(["/usr/bin/env"]).stdout)
        assert found - {"PWD"} == {"A"}


@pytest.mark.skipif(why_not("codex") is not None, reason=str(why_not("codex")))
def test_a_server_of_the_peer_applies_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "ENV", {**places.ENV, **PLAIN, **SECRET})

    async def main() -> str:
        async with (
            places.codex_server(tmp_path) as url,
            AsyncWorkspace(tmp_path, at=url, sandbox="off") as ws,
        ):
            return (await ws.run("env")).stdout

    found = names(asyncio.run(main()))
    assert PLAIN.keys() <= found
    assert not SECRET.keys() & found


def test_one_command_in_a_sandbox(tmp_path: Path) -> None:
    found = names(run("env", cwd=tmp_path).stdout)
    assert PLAIN.keys() <= found
    assert not SECRET.keys() & found
    found = names(run(["/usr/bin/env"], cwd=tmp_path, inherit_env="none").stdout)
    assert found - {"PWD"} == {"TMPDIR"}
    with pytest.raises(UsageError, match="'all', 'core' or 'none', not 'some'"):
        run("env", inherit_env="some")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options",
    [(), ("--sandbox", "off"), ("--env", "A=1"), ("--sandbox", "off", "--env", "A=1")],
    ids=["fast", "fast-off", "slow", "slow-off"],
)
def test_from_the_command_line(options: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [*HANDRAIL, "run", *options, "--", "env"],
        check=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    found = names(done.stdout)
    assert PLAIN.keys() <= found
    assert not SECRET.keys() & found


def test_an_agent_gets_the_variables_of_its_workspace(tmp_path: Path) -> None:
    async def main(where: Workspace) -> str:
        async with AgentShell(where, policy="never") as shell:
            return (await shell.run("env")).stdout.decode()

    found = names(asyncio.run(main(Workspace(tmp_path, env={"A": "1"}))))
    assert PLAIN.keys() | {"A"} <= found
    assert not SECRET.keys() & found
    found = names(asyncio.run(main(Workspace(tmp_path, inherit_env="core"))))
    assert not (PLAIN | SECRET).keys() & found


def test_both_forms_of_the_rule_are_one() -> None:
    own = dict.fromkeys(
        [*SECRET, *PLAIN, *os.environ, *(p.strip("*") for p in PEER_EXCLUDES + OUR_EXCLUDES)]
    )
    kept = build(without_secrets(Inherit.ALL), {}, dict.fromkeys(own, ""))
    assert kept.keys() == {name for name in own if not looks_secret(name)}


async def test_settings_of_the_caller_inherit_what_the_workspace_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDINARY", "seen")
    workspace = AsyncWorkspace(tmp_path, inherit_env="none", env={"OWN": "given"})
    settings = unified.Settings(str(tmp_path))
    async with AgentShell(workspace, exec_settings=settings) as shell:
        answer = await shell.exec_command("echo $OWN,$ORDINARY,")
    assert "given,," in answer.text
