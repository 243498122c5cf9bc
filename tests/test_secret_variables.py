"""Variables that no child gets."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from handrail import AsyncWorkspace
from handrail.process.env_policy import EnvPolicy, Inherit, build
from handrail.secret_variables import is_credential, without
from tests.cli.user import HANDRAIL

OURS = ("HANDRAIL_TOKEN", "HANDRAIL_MCP_TOKEN", "Handrail_Token", "HANDRAIL_NEW_SECRET")


def test_every_secret_variable_of_ours_is_known() -> None:
    assert all(map(is_credential, OURS))
    assert not any(map(is_credential, ("TOKEN", "HANDRAIL_TREES", "MY_HANDRAIL_TOKEN", "PATH")))
    assert without({"HANDRAIL_TOKEN": "x", "A": "b"}) == {"A": "b"}


def test_no_policy_lets_one_through() -> None:
    own = dict.fromkeys((*OURS, "KEPT"), "x")
    policy = EnvPolicy(Inherit.ALL, True, (), own, ())
    assert build(policy, own, own) == {"KEPT": "x"}


@pytest.mark.parametrize(
    "words",
    [
        ["sandbox", "--"],
        ["sandbox", "--json", "--"],
        ["sandbox", "--profile", "danger-full-access", "--"],
        ["run", "--"],
        ["run", "--sandbox", "off", "--"],
        ["run", "--json", "--"],
        ["run", "--env", "A=1", "--"],
    ],
)
def test_no_command_on_the_command_line_has_one(words: list[str], tmp_path: Path) -> None:
    tokens = dict.fromkeys(OURS, "not-for-children")
    done = subprocess.run(
        [*HANDRAIL, *words, "env"],
        cwd=tmp_path,
        env={**os.environ, **tokens, "KEPT": "yes", "XDG_STATE_HOME": str(tmp_path / "xdg")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "KEPT=yes" in done.stdout, done.stderr
    assert "not-for-children" not in done.stdout


def test_no_command_of_a_workspace_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS:
        monkeypatch.setenv(name, "not-for-children")

    async def main() -> str:
        async with AsyncWorkspace(tmp_path, env={"HANDRAIL_MCP_TOKEN": "not-for-children"}) as w:
            return (await w.run(["env"])).stdout

    said = asyncio.run(asyncio.wait_for(main(), 50))
    assert "PATH=" in said
    assert "not-for-children" not in said
