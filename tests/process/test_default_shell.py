"""The shell where none is named: one rule for the server, the local executor and the CLI."""

from __future__ import annotations

import os
import pwd
from types import SimpleNamespace

import pytest

from handrail.executor.local import LocalExecutor
from handrail.process.default_shell import default_shell
from handrail.process.keeper_client.answers import Abilities
from handrail.server import environment


@pytest.mark.parametrize(
    ("login", "variable", "expected"),
    [
        ("/bin/sh", "/bin/bash", "/bin/sh"),
        ("/usr/sbin/nologin", "/bin/sh", "/bin/sh"),
        ("/bin/false", "/nowhere/sh", "/bin/bash"),
        ("", "", "/bin/bash"),
    ],
)
async def test_all_ways_choose_the_same_shell(
    login: str, variable: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SimpleNamespace(pw_shell=login, pw_dir="/")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    monkeypatch.setenv("SHELL", variable)
    assert default_shell(os.environ) == expected
    assert environment.describe(os.environ, Abilities()).shell.path == expected
    assert (await LocalExecutor().place()).shell == expected
