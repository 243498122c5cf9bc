"""Writable paths of a profile that are missing: an error, never a grant of nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from handrail import AgentShell, Profile, UsageError, Workspace
from tests.cli.user import HANDRAIL


def test_a_missing_path_is_an_error(at: str | None, tmp_path: Path) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    with Workspace(root, at=at, sandbox=Profile(write=("build",))) as ws:
        with pytest.raises(UsageError, match=f"{root}/build may be written by the profile and"):
            ws.run("true")
        (root / "build").mkdir()
        assert ws.run("touch build/out").ok
        # Below a writable path a command can make it.
        assert ws.run("mkdir .git", sandbox=Profile(write=(".", ".git"))).ok
        assert ws.run("mkdir build/new", sandbox=Profile(write=("build", "build/new"))).ok


async def test_an_agent_is_told_when_it_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="build may be written by the profile and"):
        async with AgentShell(tmp_path, sandbox=Profile(write=("build",))):
            pass


def in_directory(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANDRAIL, *words], check=False, cwd=place, capture_output=True, text=True, timeout=50
    )


def test_the_command_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for more in ((), ("--env", "A=1")):
        words = ("run", "--read-only", *more, "--writable", "there", "--writable", "missing")
        done = in_directory(tmp_path, *words, "--", "true")
        assert done.returncode == 125
        assert f"{tmp_path}/missing" in done.stderr
        assert "does not exist" in done.stderr
    done = in_directory(tmp_path, "run", "--writable", "new", "--", "mkdir", "new")
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["read", "write", "deny"])
def test_a_profile_has_tuples_of_paths(name: str) -> None:
    for wrong in ("build", (b"build",), 5, None):
        with pytest.raises(UsageError, match=f"{name} of a profile is a tuple of paths"):
            Profile(**{name: wrong})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the network is"):
        Profile(network="no")  # type: ignore[arg-type]
