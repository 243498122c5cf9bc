"""A plan that is made false while sandboxes wait: none of them is used."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from handrail import Profile, private_places
from handrail.errors import ExecutorSpawnFailed
from handrail.sandbox.bwrap.instance import RunningSandbox
from handrail.sandbox.plan.placeholder_lease import Placeholder
from handrail.sandbox.warm import pool
from handrail.sandbox.warm.template import Making, Template
from tests.sandbox.warm.conftest import Warm
from tests.support.eventually import eventually_so


async def test_a_repository_is_created(warm: Warm, folder: Path) -> None:
    ws = folder / "ws"
    async with warm(ws) as warmed:
        await warmed.wait()
        async with warmed.resting():
            (ws / "sub" / ".git").mkdir(parents=True)
            await warmed.run("echo x > sub/.git/config; echo x > sub/fine", ahead=False)
        assert os.listdir(ws / "sub" / ".git") == []
        assert (ws / "sub" / "fine").exists()
        # And from the next plan.
        await warmed.wait()
        await warmed.run("echo x > sub/.git/config")
        assert os.listdir(ws / "sub" / ".git") == []


@pytest.mark.parametrize("moment", ["before", "last"])
async def test_a_missing_name_is_made(
    warm: Warm, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before the plan is looked at, or when it was found true."""

    def make() -> None:
        (folder / ".git").mkdir()
        (folder / ".git" / "HEAD").write_text("ref: x\n")

    def begin(inside: RunningSandbox, masks: Sequence[Placeholder]) -> list[int]:
        if not (folder / ".git").exists():
            make()
        return begun(inside, masks)

    async with warm(folder) as warmed:
        await warmed.wait()
        async with warmed.resting():
            if moment == "before":
                make()
            else:
                begun = RunningSandbox.begin
                monkeypatch.setattr(RunningSandbox, "begin", begin)
            result = await warmed.run("cat .git/HEAD; echo x > .git/HEAD", ahead=False)
        assert result.stdout == "ref: x\n"
        assert (folder / ".git" / "HEAD").read_text() == "ref: x\n"
    assert os.listdir(folder) == [".git"]


@pytest.mark.parametrize("exchange", ["filled", "removed", "replaced", "linked", "moved_on"])
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
async def test_a_placeholder_is_exchanged(
    warm: Warm, folder: Path, monkeypatch: pytest.MonkeyPatch, exchange: str, nested: bool
) -> None:
    """Between its making and the mount, by a program outside."""
    ws, out = folder / "ws", folder / "out"
    out.mkdir()
    if nested:  # cold, names are covered before bubblewrap starts then
        (ws / "sub" / ".git").mkdir(parents=True)
    git = ws / ".git"

    def begin(inside: RunningSandbox, masks: Sequence[Placeholder]) -> list[int]:
        covers = begun(inside, masks)
        if git.is_symlink() or exchanged:
            return covers
        exchanged.append(True)
        if exchange == "filled":
            (git / "HEAD").write_text("ref: x\n")
        elif exchange == "removed":
            git.rmdir()
        elif exchange == "replaced":
            git.rename(ws / "old")
            git.mkdir()
        elif exchange == "linked":
            git.rename(ws / "old")
            git.symlink_to(out)
        else:  # the whole directory, and another takes its place
            ws.rename(folder / "elsewhere")
            ws.mkdir()
        return covers

    exchanged: list[bool] = []
    begun = RunningSandbox.begin
    async with warm(ws) as warmed:
        await warmed.wait()
        async with warmed.resting():
            monkeypatch.setattr(RunningSandbox, "begin", begin)
            command = "echo x > .git/HEAD; echo x > .git/config; echo x > .codex/x; pwd"
            with contextlib.suppress(ExecutorSpawnFailed):  # nothing ran
                result = await warmed.ws.run(command)
                assert result.stdout in ("", f"{ws}\n")
            assert exchanged
        for place in (ws, folder / "elsewhere"):
            assert not (place / ".git" / "config").exists()
            assert not (place / ".codex" / "x").exists()
        assert os.listdir(out) == []
        if exchange == "filled":
            assert (git / "HEAD").read_text() == "ref: x\n"


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
        async with warmed.resting():
            (folder / "new").write_text("two")
            os.replace(folder / "new", secret)
            assert (await warmed.run("cat ws/secret", ahead=False)).stdout == ""
        await warmed.wait()
        async with warmed.resting():
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
        async with warmed.resting():
            build.rename(folder / "old")
            if link:
                build.symlink_to(out)
            else:
                build.mkdir()
            before = warmed.used
            with pytest.raises(ExecutorSpawnFailed) if link else contextlib.nullcontext():
                await warmed.ws.run("echo x > build/f; echo x > old/f")
            assert warmed.used == before
        assert not (folder / "old" / "f").exists()
        assert not (out / "f").exists()
        assert (build / "f").exists() is not link


async def test_a_private_place_makes_no_difference(
    warm: Warm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commands have a /tmp of their own: as when another server starts and ends."""
    async with warm(folder) as warmed:
        await warmed.wait()
        monkeypatch.setattr(private_places, "_added", dict(private_places._added))
        private_places.add("/tmp/handrail-somewhere/state", directory=True)
        async with warmed.resting():
            assert (await warmed.run("echo fine")).stdout == "fine\n"


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


@pytest.mark.parametrize("how", ["replaced", "moved"])
@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_a_denied_name_is_exchanged_before_the_copy(
    forced: Warm, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, kind: str
) -> None:
    """When the template was found to be good, and no sandbox waits: it is looked at in the copy."""
    secret, ws = folder / "ws" / "secret", folder / "ws"
    ws.mkdir()

    def put(text: str) -> None:
        if kind == "directory":
            secret.mkdir()
        (secret / "x" if kind == "directory" else secret).write_text(text)

    def exchange(*args: Any, **options: Any) -> Any:
        made = copied(*args, **options)
        if not exchanged and not options["waits"]:
            exchanged.append(True)
            if how == "moved":
                secret.rename(folder / "old")
            elif kind == "directory":
                shutil.rmtree(secret)
            else:
                secret.unlink()
            put("two")
        return made

    put("one")
    exchanged: list[bool] = []
    async with forced(ws, sandbox=Profile(write=(".",), deny=(str(secret),))) as warmed:
        assert (await warmed.ws.run("cat secret secret/x")).stdout == ""
        copied = pool.copied
        monkeypatch.setattr(pool, "copied", exchange)
        async with warmed.resting():
            for one in warmed.standing:
                one._changed = True
            assert (await warmed.ws.run("cat secret secret/x")).stdout == ""
        assert exchanged


async def test_a_denied_name_is_exchanged_while_the_template_is_made(
    warm: Warm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And put back: the plan is true again, and the cover is elsewhere."""
    secret = folder / "secret"

    def finish(making: Making) -> Template:
        steps.append("exchanged")
        secret.rename(folder / "kept")
        secret.write_text("other")
        try:
            return made(making)
        finally:
            secret.rename(folder / f"other{len(steps)}")
            (folder / "kept").rename(secret)
            steps.append("put back")

    steps: list[str] = []
    made = Making.finish
    monkeypatch.setattr(Making, "finish", finish)
    secret.write_text("one")
    async with warm(folder, sandbox=Profile(write=(".",), deny=(str(secret),))) as warmed:
        for _ in range(6):
            await eventually_so(lambda: len(steps) % 2 == 0, "it is put back")
            before = len(steps)
            result = await warmed.ws.run("cat secret")
            if len(steps) == before:  # else the cover of a cold one has moved meanwhile
                assert result.stdout == ""
            with contextlib.suppress(AssertionError):
                await eventually_so(lambda: bool(warmed.standing), limit=0.5)
        assert steps
        assert warmed.started == 0
