"""A plan that is made false while sandboxes wait: none of them is used."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from handrail import Profile, private_places
from handrail.errors import ExecutorSpawnFailed
from tests.sandbox.warm.conftest import Warm


async def test_a_repository_is_created(warm: Warm, folder: Path) -> None:
    ws = folder / "ws"
    async with warm(ws) as warmed:
        await warmed.wait()
        (ws / "sub" / ".git").mkdir(parents=True)
        await warmed.run("echo x > sub/.git/config; echo x > sub/fine", ahead=False)
        assert os.listdir(ws / "sub" / ".git") == []
        assert (ws / "sub" / "fine").exists()
        # And from the next plan.
        await warmed.wait()
        await warmed.run("echo x > sub/.git/config")
        assert os.listdir(ws / "sub" / ".git") == []


async def test_a_placeholder_is_filled(warm: Warm, folder: Path) -> None:
    async with warm(folder) as warmed:
        await warmed.wait()
        assert os.listdir(folder / ".git") == []
        (folder / ".git" / "HEAD").write_text("ref: x\n")
        result = await warmed.run("cat .git/HEAD; echo x > .git/HEAD", ahead=False)
        assert result.stdout == "ref: x\n"
        assert (folder / ".git" / "HEAD").read_text() == "ref: x\n"


@pytest.mark.parametrize("again", [False, True])
async def test_a_placeholder_is_removed(warm: Warm, folder: Path, again: bool) -> None:
    """Its mount goes with it, also if another directory takes its place and inode."""
    async with warm(folder) as warmed:
        await warmed.wait()
        (folder / ".codex").rmdir()
        if again:
            (folder / ".codex").mkdir()
        # The kernel tells it once; it holds for good.
        assert not any(one.stands() for one in warmed.standing)
        assert not any(one.stands() for one in warmed.standing)
        await warmed.run("mkdir -p .codex; echo x > .codex/x; echo y > fine", ahead=False)
        assert (folder / "fine").exists()
        assert not (folder / ".codex" / "x").exists()


async def test_a_denied_file_is_replaced(warm: Warm, folder: Path) -> None:
    """Editors rename; and one that is made anew may get the same inode number."""
    secret = folder / "ws" / "secret"
    profile = Profile(write=("ws",), deny=(str(secret),))
    secret.parent.mkdir()
    secret.write_text("one")
    async with warm(folder, sandbox=profile) as warmed:
        await warmed.wait()
        assert (await warmed.run("cat ws/secret")).stdout == ""
        await warmed.wait()
        (folder / "new").write_text("two")
        os.replace(folder / "new", secret)
        assert (await warmed.run("cat ws/secret", ahead=False)).stdout == ""
        await warmed.wait()
        secret.unlink()
        secret.write_text("three")
        assert not any(one.stands() for one in warmed.standing)
        assert (await warmed.run("cat ws/secret", ahead=False)).stdout == ""


async def test_a_deny_pattern_matches_now(warm: Warm, folder: Path) -> None:
    profile = Profile(write=(".",), deny=("**/*.env",))
    for name in (".git", ".agents", ".codex", "sub"):
        (folder / name).mkdir()
    async with warm(folder, sandbox=profile) as warmed:
        for _ in range(2):
            await warmed.ws.run("true")
        (folder / "sub" / "a.env").write_text("TOKEN")
        assert (await warmed.ws.run("cat sub/a.env")).stdout == ""


@pytest.mark.parametrize("link", [False, True])
async def test_a_root_is_replaced(warm: Warm, folder: Path, link: bool) -> None:
    ws, build, out = folder, folder / "build", folder / "out"
    build.mkdir()
    out.mkdir()
    profile = Profile(read=("/",), write=(str(build),))
    async with warm(ws, sandbox=profile) as warmed:
        await warmed.wait()
        build.rename(folder / "old")
        if link:
            build.symlink_to(out)
        else:
            build.mkdir()
        before = warmed.pool.used
        with pytest.raises(ExecutorSpawnFailed) if link else contextlib.nullcontext():
            await warmed.ws.run("echo x > build/f; echo x > old/f")
        assert warmed.pool.used == before
        assert not (folder / "old" / "f").exists()
        assert not (out / "f").exists()
        assert (build / "f").exists() is not link


async def test_a_private_place_is_added(
    warm: Warm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server is given a rules file or a token file."""
    rules = folder / "rules"
    rules.write_text("secret rule")
    async with warm(folder) as warmed:
        await warmed.wait()
        assert (await warmed.run("cat rules")).stdout == "secret rule"
        await warmed.wait()
        monkeypatch.setattr(private_places, "_added", dict(private_places._added))
        private_places.add(str(rules))
        assert (await warmed.run("cat rules", ahead=False)).stdout == ""
