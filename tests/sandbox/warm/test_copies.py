"""Sandboxes that are copies of a template: nothing is shared but what is read-only."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from handrail import Profile
from tests.sandbox.warm.conftest import Warm, commands, copied
from tests.support.eventually import eventually_so

#: Commands of a workspace share its loopback, and nothing else.
NAMESPACES = {"cgroup": 2, "ipc": 2, "mnt": 2, "net": 1, "pid": 2, "user": 2, "uts": 2}


async def test_the_first_command_if_it_is_forced(forced: Warm, folder: Path) -> None:
    async with forced(folder) as warmed:
        assert await copied(warmed, "touch .git/x; echo $?") == "1\n"
        assert warmed.pool.copied == 1
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    "place", ["/dev", "/dev/shm", "/run/lock", "/proc/1", "/proc/irq", "{ws}/secret"]
)
async def test_what_one_leaves_another_does_not_find(
    forced: Warm, folder: Path, place: str
) -> None:
    (folder / "secret").mkdir()
    place = place.format(ws=folder)
    profile = Profile(write=(".",), deny=(f"{folder}/secret",))
    async with forced(folder, sandbox=profile) as warmed:
        await copied(warmed, f"chmod 777 {place}; echo left > {place}/found")
        assert "left" not in await copied(warmed, f"chmod 777 {place}; cat {place}/found")
    assert os.listdir(folder / "secret") == []


async def test_two_at_the_same_time_share_no_namespace_but_the_loopback(
    forced: Warm, folder: Path
) -> None:
    async with forced(folder) as warmed:
        both = [await warmed.ws.start(["/bin/cat"]) for _ in range(2)]
        assert warmed.pool.copied == 2
        launcher = warmed.executor._launcher
        assert launcher is not None
        await eventually_so(lambda: len(commands(launcher.keeper_pid, "cat")) == 2, "both run")
        inside = commands(launcher.keeper_pid, "cat")
        for kind, count in NAMESPACES.items():
            found = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in inside}
            assert len(found) == count, kind
            assert os.readlink(f"/proc/self/ns/{kind}") not in found
        for process in both:
            await process.close_stdin()
            await process.wait()


async def test_terminals_are_its_own(forced: Warm, folder: Path) -> None:
    """Of the host's there is none but its own, as the console; the template has them all."""
    async with forced(folder) as warmed:
        process = await warmed.ws.start("tty; ls /dev/pts; stat -c %t,%T /dev/console", tty=True)
        await process.wait()
        tty, terminals, _ = (await process.result()).stdout.split()
        assert (tty, terminals) == ("/dev/console", "ptmx")


async def test_a_mount_below_the_new_ones_is_out_of_reach(forced: Warm, folder: Path) -> None:
    """The template's /dev and /proc are below those of the copy."""
    async with forced(folder) as warmed:
        for command in (
            "umount /dev",
            "umount -l /dev/pts",
            "unshare -rm umount /dev",
        ):
            await warmed.ws.run(command)
        assert await copied(warmed, "ls /dev/pts") == "ptmx\n"


async def test_exits_of_commands(forced: Warm, folder: Path) -> None:
    async with forced(folder) as warmed:
        for command, code in (("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137)):
            result = await warmed.ws.run(command)
            assert result.exit.code == code, command
        left = await warmed.ws.run("sleep 1000 & echo on")
        assert left.stdout == "on\n"
        assert warmed.started == 5


async def test_a_path_that_cannot_be_one_is_left_out(forced: Warm, folder: Path) -> None:
    """In PATH, as the C library does."""
    async with forced(folder) as warmed:
        for path in (f"/{'y' * 5000}:/bin", f"/bin:/{'y' * 5000}"):
            result = await warmed.ws.run(["true"], env={"PATH": path})
            assert (result.exit_code, result.stderr) == (0, "")
        assert warmed.started == 2


async def test_many_at_once(forced: Warm, folder: Path) -> None:
    async with forced(folder) as warmed:
        runs = [warmed.ws.run(f"echo {number}; touch .codex/x") for number in range(80)]
        results = await asyncio.gather(*runs)
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(80)]
        assert all("denied" in result.stderr for result in results)
    assert os.listdir(folder) == []


async def test_a_template_is_given_up_when_its_mounts_have_changed(
    forced: Warm, folder: Path
) -> None:
    secret = folder / "secret"
    secret.write_text("one")
    async with forced(folder, sandbox=Profile(write=(".",), deny=(str(secret),))) as warmed:
        assert await copied(warmed, "cat secret") == ""
        (template,) = warmed.pool._templates._found.values()
        secret.unlink()
        secret.write_text("two")
        assert not template.stands()
        assert await copied(warmed, "cat secret") == ""
        assert template not in warmed.pool._templates._found.values()
