"""A waiting sandbox is out of reach, for commands of the same user and workspace too."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from handrail.keeper.proc_children import children_of
from handrail.sandbox.profile import PROTECTED_NAMES
from tests.sandbox.warm.conftest import Warm, Warmed, commands
from tests.support.eventually import eventually_so

ATTACK = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
done = []
for pid in map(int, sys.argv[1:]):
    for what, call in (
        ("signal", lambda: os.kill(pid, signal.SIGKILL)),
        ("stop", lambda: os.kill(pid, signal.SIGSTOP)),
        ("pidfd", lambda: os.pidfd_open(pid)),
        ("proc", lambda: os.listdir(f"/proc/{pid}/fd")),
        ("memory", lambda: open(f"/proc/{pid}/mem", "r+b")),
        ("root", lambda: os.listdir(f"/proc/{pid}/root")),
        ("nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)),
    ):
        try:
            call()
            done.append((what, pid))
        except OSError:
            pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        done.append(("ptrace", pid))
try:
    os.kill(-1, signal.SIGSTOP)  # all that there are, but itself
except OSError:
    pass
print(done, [name for name in os.listdir("/proc") if name.isdigit()], os.listdir("/proc/self/fd"))
print(open("/proc/net/unix").read().count("\\n"))
"""


def processes(warmed: Warmed) -> list[int]:
    """All processes of all that wait: outer one, maker if names are missing, first one, stub."""
    found = [one.spawned.pid for one in warmed.standing]
    for pid in found:
        found += children_of(pid)
    return found


def outer_processes(keeper: int) -> set[int]:
    """Those of copied sandboxes below a keeper."""
    return {pid for pid in children_of(keeper) if "handrail-copy" in link(f"/proc/{pid}/exe")}


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


@pytest.fixture(params=[False, True], ids=["there", "missing"])
def missing(folder: Path, request: pytest.FixtureRequest) -> bool:
    """Whether names are missing, which are covered when the command comes."""
    for name in () if request.param else PROTECTED_NAMES:
        (folder / name.decode()).mkdir()
    return bool(request.param)


async def test_from_another_sandbox_of_the_workspace(
    warm: Warm, folder: Path, missing: bool
) -> None:
    async with warm(folder) as warmed:
        await warmed.wait(3)
        (folder / "attack.py").write_text(ATTACK)
        pids = processes(warmed)
        assert len(pids) >= (12 if missing else 9)
        words = " ".join(map(str, pids))
        result = await warmed.run(f"exec /usr/bin/python3 attack.py {words}")
        done, sockets = result.stdout.splitlines()
        assert done == "[] ['1', '2'] ['0', '1', '2', '3']", result
        assert sockets == "1"  # the head of the list: no socket at all
        for one in warmed.standing:
            assert one.stands()
        assert (await warmed.run("echo fine")).stdout == "fine\n"


async def test_its_processes_are_one_program(warm: Warm, folder: Path, missing: bool) -> None:
    """None of them was executed by another one: that takes as long as a plain start."""
    async with warm(folder) as warmed:
        await warmed.wait(2)
        for one in warmed.standing:
            first = one.running.first()
            pids = [one.spawned.pid, first, *children_of(first)]
            assert len(pids) == 3
            for pid in pids:
                assert link(f"/proc/{pid}/exe") == "/memfd:handrail-copy (deleted)"


async def test_it_has_nothing_of_a_request(warm: Warm, folder: Path, missing: bool) -> None:
    async with warm(folder, env={"SECRET_WORD": "hush"}) as warmed:
        await warmed.wait(2)
        pids = processes(warmed)
        assert pids
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a maker that is done
                assert "SECRET_WORD" not in read(f"/proc/{pid}/environ")


async def test_what_is_outside_has_no_more_than_it_needs(warm: Warm, folder: Path) -> None:
    """The outer process has no rights, the maker is outside of the sandbox's processes; neither has
    anything of a command."""
    async with warm(folder, env={"SECRET_WORD": "hush"}) as warmed:
        await warmed.wait(2)
        for one in warmed.standing:
            outer = one.spawned.pid
            (maker,) = set(children_of(outer)) - {one.running.first()}
            for pid in (outer, maker):
                assert read(f"/proc/{pid}/environ") == ""
                assert link(f"/proc/{pid}/ns/pid") == link("/proc/self/ns/pid")
            assert link(f"/proc/{outer}/ns/mnt") == link("/proc/self/ns/mnt")
            assert link(f"/proc/{outer}/ns/user") == link("/proc/self/ns/user")
            assert link(f"/proc/{maker}/ns/mnt") == link(f"/proc/{one.running.first()}/ns/mnt")
            # Root, who owns the null device, gets it on a mount of its own.
            null = "/" if os.geteuid() == 0 else "/dev/null"
            streams, pipe, socket = [null, "pipe", "pipe"], ["pipe"], ["socket"]
            assert open_files(outer) == streams + pipe  # on which it hears of the end
            covers = ["/"] * len(PROTECTED_NAMES)
            # How far the sandbox is; the stub; where it is told, where it is seen and said.
            assert open_files(maker) == covers + streams + pipe * 3 + socket * 2


def open_files(pid: int) -> list[str]:
    """The kinds of files that a process has open."""
    names = [link(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return sorted(name.partition(":")[0] for name in names)


async def test_an_outer_process_that_is_killed(warm: Warm, folder: Path) -> None:
    """Its sandbox is given up, and the command gets another."""
    async with warm(folder) as warmed:
        await warmed.wait(2)
        async with warmed.resting():
            for one in warmed.standing:
                os.kill(one.spawned.pid, signal.SIGKILL)
            for _ in range(3):
                result = await warmed.ws.run("touch .git/x; echo fine")
                assert (result.stdout, "denied" in result.stderr) == ("fine\n", True)
    assert os.listdir(folder) == []


async def test_it_has_filters(warm: Warm, folder: Path) -> None:
    for name in PROTECTED_NAMES:
        (folder / name.decode()).mkdir()
    async with warm(folder) as warmed:
        await warmed.wait(2)
        for one in warmed.standing:
            (stub,) = children_of(one.running.first())
            status = read(f"/proc/{stub}/status")
            assert "NoNewPrivs:\t1" in status
            assert "Seccomp:\t2" in status
            assert "CapEff:\t0000000000000000" in status
            assert "CapBnd:\t0000000000000000" in status
            names = [os.readlink(f"/proc/{stub}/fd/{fd}") for fd in os.listdir(f"/proc/{stub}/fd")]
            lines = [name for name in names if name.startswith("socket:")]
            assert len(lines) == 1


async def test_they_end_with_their_keeper(warm: Warm, folder: Path) -> None:
    async with warm(folder) as warmed:
        await warmed.wait(3)
        pids = processes(warmed)
        launcher = warmed.executor._launcher
        assert launcher is not None
        os.kill(launcher.keeper_pid, signal.SIGKILL)
        await eventually_so(lambda: not any(map(alive, pids)), "they end")
        # A start before that is refused, with the advice to try again.
        await eventually_so(lambda: not launcher.link.alive, "the loss is noticed")
        assert (await warmed.ws.run("echo again")).stdout == "again\n"
    assert os.listdir(folder) == []


def read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.mark.parametrize("killed", ["first", "stub"])
async def test_one_whose_inside_is_killed(
    warm: Warm, folder: Path, missing: bool, killed: str
) -> None:
    """The command did not begin there, so it begins elsewhere; once."""
    async with warm(folder) as warmed:
        await warmed.wait(2)
        async with warmed.resting():
            for one in warmed.standing:
                first = one.running.first()
                (stub,) = children_of(first)
                os.kill(stub if killed == "stub" else first, signal.SIGKILL)
                await eventually_so(lambda stub=stub: not alive(stub), "it ends")
            for _ in range(3):
                result = await warmed.ws.run("echo x >> log; echo fine")
                assert (result.exit_code, result.stdout) == (0, "fine\n")
        assert (folder / "log").read_text() == "x\n" * 3


async def test_a_command_whose_inside_is_killed(warm: Warm, folder: Path, missing: bool) -> None:
    """It ends as if it was killed itself, whichever process is."""
    async with warm(folder) as warmed:
        await warmed.wait(1)
        launcher = warmed.executor._launcher
        assert launcher is not None
        keeper = launcher.keeper_pid
        for place in ("outer", "first", "command"):
            process = await warmed.ws.start(["/bin/sleep", "1000"])
            await eventually_so(lambda: bool(commands(keeper, "sleep")), "it runs")
            (command,) = commands(keeper, "sleep")
            above = [command, parent(command), parent(parent(command))]
            os.kill(above[["command", "first", "outer"].index(place)], signal.SIGKILL)
            assert (await process.wait()).code == 137, place
            await eventually_so(lambda command=command: not alive(command), "it ends")
    assert len(os.listdir(folder)) == (0 if missing else len(PROTECTED_NAMES))


def parent(pid: int) -> int:
    return int(read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
