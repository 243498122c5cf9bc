"""Commands that start from a sandbox that waits: what they have, and that none is used twice."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path

import pytest

from handrail import AsyncWorkspace, Limits, Profile
from handrail.process.keeper_client import start_fields
from handrail.sandbox.profile import PROTECTED_NAMES
from tests.sandbox.warm.conftest import Warm, Warmed
from tests.support.eventually import eventually_so
from tests.support.processes import nothing_left

PDEATHSIG = (
    "import ctypes; it = ctypes.c_int(); libc = ctypes.CDLL(None);"
    " print(libc.prctl(2, ctypes.byref(it)), it.value, libc.prctl(3), libc.prctl(27))"
)
LOOK = [
    "id -u; hostname; pwd; echo $PWD; env | sort; umask; ls -lA --time-style=+ .; tty; ls -1A /dev",
    "ulimit -a | grep -v locks",  # which is the tag
    "ls /proc /proc/self/fd | grep -v '[0-9][0-9]'; cut -d' ' -f4-6 /proc/self/stat",
    "grep -e NoNew -e Seccomp -e Cap -e Sig /proc/self/status; cat /proc/1/stat",
    'grep " $PWD" /proc/self/mountinfo | cut -d" " -f4-6 | sort',
    # Copies have empty ones read-only, and nothing below them.
    'grep " /[dp]" /proc/self/mountinfo | cut -d" " -f5 | sort -u',
    "echo x > /proc/sys/kernel/hostname; ls -A /proc/1 /proc/irq; cat /proc/self/uid_map",
    f"exec /usr/bin/python3 -c '{PDEATHSIG}'",
]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("tty", [False, True])
async def test_everything_is_as_cold(warm: Warm, folder: Path, tty: bool, missing: bool) -> None:
    """But for ``/dev/.ready`` (docs/decisions/0028)."""
    for name in () if missing else PROTECTED_NAMES:
        (folder / name.decode()).mkdir()
    async with warm(folder) as warmed:
        cold = await said(warmed, tty)
        while True:
            before = warmed.used
            ahead = await said(warmed, tty)
            if warmed.used > before:
                break
            with contextlib.suppress(AssertionError):
                await eventually_so(lambda: bool(warmed.standing), limit=2)
    assert ahead == [line for line in cold if line != ".ready"]


async def said(warmed: Warmed, tty: bool) -> list[str]:
    process = await warmed.ws.start("; ".join(LOOK), tty=tty)
    await process.wait()
    text = (await process.result()).stdout
    return text.replace("\r", "").splitlines()


@pytest.mark.parametrize("nested", [False, True])
async def test_none_is_seen_on_the_host(warm: Warm, folder: Path, nested: bool) -> None:
    """While they wait; a command has the names covered that are missing."""
    ws = folder / "ws"
    there = ["sub"] if nested else []
    for name in there:  # cold, names are covered before bubblewrap starts then
        (ws / name / ".git").mkdir(parents=True)
    denied = Profile(write=(".",), deny=("secret", "one/two"))
    async with warm(ws, sandbox=denied) as warmed:
        await warmed.wait(3)
        async with warmed.resting():
            assert os.listdir(ws) == there
            result = await warmed.run(
                "ls -A; mkdir .git/x; rmdir .git; touch .agents/x; echo x >secret; mkdir one/two;"
                " ls -A /proc/self/fd"
            )
            names = [".agents", ".codex", ".git", "one", "secret", *there]
            assert result.stdout.splitlines() == [*names, "0", "1", "2", "3"]
            assert len(result.stderr.splitlines()) == 5, result
            assert os.listdir(ws) == there
            assert all(one.stands() for one in warmed.standing)


async def test_they_share_the_network_of_their_workspace(warm: Warm, folder: Path) -> None:
    """And end with it, though their executor goes on."""
    network = "readlink /proc/self/ns/net"
    async with warm(folder / "one") as warmed:
        shared = (await warmed.ws.run(network)).stdout
        await warmed.wait()
        assert (await warmed.run(network)).stdout == shared
        async with AsyncWorkspace(folder, executor=warmed.executor) as other:
            assert (await other.run(network)).stdout != shared
            for _ in range(3):
                await other.run("true")
            assert len(warmed.pool._lines) == 2
        await eventually_so(lambda: len(warmed.pool._lines) == 1, "those of the other have ended")


async def test_no_kind_takes_all_the_room(warm: Warm, folder: Path) -> None:
    async with warm(folder) as warmed:
        await warmed.wait(1)
        warmed.pool._most = 4
        await warmed.wait(4)
        await said(warmed, tty=True)
        await said(warmed, tty=True)
        lines = warmed.pool._lines
        await eventually_so(
            lambda: any(kind.tty and line.standing for kind, line in lines.items()),
            "one waits for the next terminal",
        )


async def test_each_is_used_once(warm: Warm, folder: Path) -> None:
    async with warm(folder) as warmed:
        await warmed.wait(3)
        kept = "echo $$; ls /dev/shm; touch /dev/shm/left; ipcmk -M 64 >/dev/null; ipcs -m | wc -l"
        first = (await warmed.run(kept)).stdout
        assert (await warmed.run(kept)).stdout == first


async def test_exit_signal_input_usage_limit_and_time(warm: Warm, folder: Path) -> None:
    async with warm(folder) as warmed:
        await warmed.wait(8)
        assert (await warmed.run("exit 7")).exit_code == 7
        assert (await warmed.run("kill -9 $$")).exit.signal == "SIGKILL"
        limited = await warmed.ws.run(
            "ulimit -n; ulimit -t", limits=Limits(open_files=64, cpu_seconds=9)
        )
        assert limited.stdout == "64\n9\n"
        late = await warmed.ws.run("sleep 60", timeout=0.3)
        assert late.timed_out
        process = await warmed.ws.start(
            "trap 'echo got; exit 3' TERM; echo on; sleep 60 & wait", stdin=True
        )
        await process.wait_for("on", timeout=30)
        await process.terminate(grace=20)
        assert (await process.wait()).code == 3
        busy = await warmed.run("i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done")
        assert busy.exit.usage.user_ms > 0


async def test_what_cannot_be_the_same_starts_cold(warm: Warm, folder: Path) -> None:
    async with warm(folder) as warmed:
        await warmed.wait()
        await warmed.run("true", ahead=True)
        long = await warmed.run(f": {'x' * 50_000}; echo fine", ahead=False)
        assert long.stdout == "fine\n"
        watched = warmed.used
        result = await warmed.ws.run("echo x > /etc/x", watch_denials=True)
        assert result.denials
        assert warmed.used == watched


async def test_nothing_is_left(warm: Warm, folder: Path) -> None:
    with nothing_left():
        async with warm(folder) as warmed:
            await warmed.wait(3)
            for _ in range(20):
                await warmed.ws.run("true")
    assert os.listdir(folder) == []


async def test_one_that_was_killed_is_not_used(warm: Warm, folder: Path) -> None:
    async with warm(folder) as warmed:
        await warmed.wait(2)
        killed = warmed.standing
        for one in killed:
            os.kill(one.spawned.pid, signal.SIGKILL)
        # Others are made meanwhile.
        await eventually_so(
            lambda: not any(one.stands() for one in warmed.standing if one in killed), "they end"
        )
        result = await warmed.ws.run("echo fine")
        assert (result.exit_code, result.stdout) == (0, "fine\n")


@pytest.mark.parametrize("missing", [False, True])
async def test_a_command_that_cannot_be_told_starts_cold(
    warm: Warm, folder: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    for name in () if missing else PROTECTED_NAMES:
        (folder / name.decode()).mkdir()

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "no descriptor is free for it")

    async with warm(folder) as warmed:
        await warmed.wait(2)
        before = warmed.used
        monkeypatch.setattr(start_fields, "use", refuse)
        assert (await warmed.ws.run("echo on")).stdout == "on\n"
        assert warmed.used > before
