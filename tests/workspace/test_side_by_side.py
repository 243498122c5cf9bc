"""Several workspaces in one program: on one loop, on several, in threads, and over a fork."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from handrail import AsyncProcess, AsyncWorkspace, ExecutorSpawnFailed, run
from handrail.executor.local import LocalExecutor
from handrail.executor.local_sandbox import LocalSandbox
from handrail.process import fd_reserve
from handrail.process.spec import ProcessSpec
from handrail.sandbox.bwrap.instance import RunningSandbox
from handrail.workspace import profile
from tests.support.eventually import eventually_so
from tests.support.processes import descriptors

SANDBOXES = ["workspace-write", "off"]
SHORT = 30.0


async def answers(process: AsyncProcess, word: str) -> None:
    """It lives, and reads what it is sent."""
    await process.send(f"{word}\n")
    await process.wait_for(word, timeout=SHORT)


async def test_leaving_one_touches_no_other(tmp_path: Path) -> None:
    mine, other = LocalExecutor(), LocalExecutor()
    async with AsyncWorkspace(tmp_path, executor=mine) as ws:
        process = await ws.start("cat")
        for word in ("one", "two"):
            async with AsyncWorkspace(tmp_path, executor=other) as beside:
                assert (await beside.run("echo x")).stdout == "x\n"
            await other.close()
            other = LocalExecutor()
            await answers(process, word)
    await mine.close()


async def test_many_come_and_go_on_one_loop(tmp_path: Path) -> None:
    async def some() -> None:
        for number in range(8):
            async with AsyncWorkspace(tmp_path) as ws:
                result = await ws.run(f"echo {number}")
                assert (result.exit_code, result.stdout) == (0, f"{number}\n")

    await asyncio.gather(*(some() for _ in range(3)))


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_threads_with_loops_of_their_own(tmp_path: Path, sandbox: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    before = descriptors()

    async def main() -> None:
        async with AsyncWorkspace(root, sandbox=sandbox) as ws:
            for _ in range(3):
                result = await ws.run("echo x; touch ../outside")
                assert (result.stdout, bool(result.denials)) == ("x\n", sandbox != "off")

    def work(_: int) -> None:
        for _ in range(3):
            asyncio.run(main())
            assert run("echo s", cwd=root, sandbox=sandbox).stdout == "s\n"

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(descriptors()) <= len(before)


async def test_an_executor_is_closed_on_its_own_loop(tmp_path: Path) -> None:
    """By whoever: what it has there is touched there."""
    executor = LocalExecutor()
    ready, over = threading.Event(), threading.Event()
    ended: list[object] = []

    async def elsewhere() -> None:
        async with AsyncWorkspace(tmp_path, executor=executor) as ws:
            process = await ws.start("cat")
            ready.set()
            ended.append((await process.result()).exit_code)
            await asyncio.to_thread(over.wait, SHORT)

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(ready.wait, SHORT)
    await executor.close()
    over.set()
    await asyncio.to_thread(thread.join)
    assert ended == [137]


async def test_another_thread_that_looks_for_room_takes_none(tmp_path: Path) -> None:
    """A number that somebody else has for a moment does not mean that all are taken."""
    taken = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, fd_reserve.limit() - 5)
    try:
        async with AsyncWorkspace(tmp_path, sandbox="off") as ws:
            assert (await ws.run("echo x")).stdout == "x\n"
    finally:
        os.close(taken)


# --- given up while it is being prepared ----------------------------------------------------------


async def turns(count: int) -> None:
    """So many turns of the loop, however long each takes."""
    for _ in range(count):
        await asyncio.sleep(0)


async def give_up(ws: AsyncWorkspace, count: int) -> None:
    task = asyncio.ensure_future(ws.start("sleep 600"))
    await turns(count)
    task.cancel()
    try:
        await (await task).terminate()
    except asyncio.CancelledError:
        pass


#: The first turns one by one; later ones differ in what the keeper and bwrap have come to.
TURNS = [*range(24), 50, 100, 200, 400, 800, 1600, 3200]


def lasting() -> list[str]:
    """What is open, without a watch of directories: it is made when they take long to walk."""
    return [name for name in descriptors().values() if "inotify" not in name]


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_start_that_is_given_up_leaves_nothing(
    tmp_path: Path, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDRAIL_WARM", "off")  # those that wait hold descriptors

    async def left_at_once(count: int) -> None:
        async with AsyncWorkspace(tmp_path, sandbox=sandbox) as ws:
            await give_up(ws, count)

    async def one_after_another() -> None:
        async with AsyncWorkspace(tmp_path, sandbox=sandbox) as ws:
            await ws.run("true")
            before = lasting()
            for count in TURNS:
                await give_up(ws, count)
            await eventually_so(
                lambda: len(lasting()) <= len(before),
                lambda: f"no more descriptors: {sorted(set(lasting()) - set(before))}",
            )

    asyncio.run(left_at_once(0))
    gc.collect()  # what earlier tests have left to it
    before = lasting()
    for count in TURNS:
        asyncio.run(left_at_once(count))
    asyncio.run(one_after_another())
    gc.collect()
    assert sorted(lasting()) == sorted(before)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_keeper_that_is_killed_meanwhile_leaves_nothing(tmp_path: Path, sandbox: str) -> None:
    async def main(count: int) -> None:
        executor = LocalExecutor()
        async with AsyncWorkspace(tmp_path, executor=executor, sandbox=sandbox) as ws:
            await ws.run("true")
            launcher = executor._launcher
            assert launcher is not None
            task = asyncio.ensure_future(ws.run("sleep 600"))
            await turns(count)
            os.kill(launcher.keeper_pid, signal.SIGKILL)
            try:
                assert (await asyncio.wait_for(task, SHORT)).exit_code != 0
            except ExecutorSpawnFailed:
                pass
        await executor.close()

    asyncio.run(main(0))
    gc.collect()  # what earlier tests have left to it
    before = descriptors()
    for count in (*range(12), 50, 100, 200, 400, 800):
        asyncio.run(main(count))
    gc.collect()
    assert sorted(descriptors().values()) == sorted(before.values())


# --- over a fork ----------------------------------------------------------------------------------


def test_a_forked_child_holds_nothing_of_a_sandbox(tmp_path: Path) -> None:
    """A copy of bwrap's end of a line would keep that open, as long as the child lives."""
    sandbox = LocalSandbox()
    spec = ProcessSpec((b"/bin/true",), os.fsencode(tmp_path), {})
    wanted = profile.intent(profile.Profile(), str(tmp_path), None)
    assert wanted is not None
    inside = sandbox.sandboxed(spec, wanted).running_sandbox
    assert isinstance(inside, RunningSandbox)
    assert inside._lease is not None
    held = [*inside._closing, inside._info, inside._ready, inside._lease.fd]
    assert all(map(is_open, held))
    pid = os.fork()
    if pid == 0:
        os._exit(sum(map(is_open, held)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert all(map(is_open, held))
    inside.abandon()
    sandbox.close()
    assert os.listdir(tmp_path) == []


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


#: While threads run commands, children do the same; those of the parent live on.
FORKS = """
import os, signal, sys, threading
import handrail

root, sandbox = sys.argv[1:]
with handrail.Workspace(root, sandbox=sandbox) as ws:
    lasting = ws.start("cat")
    ws.run("true")
    stop = threading.Event()
    bad = []

    def work():
        while not stop.is_set():
            result = ws.run("echo x")
            if (result.exit_code, result.stdout) != (0, "x\\n"):
                bad.append(result)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            signal.alarm(50)
            os._exit(handrail.run("echo c", cwd=root, sandbox=sandbox).stdout != "c\\n")
        print(os.waitpid(pid, 0)[1], end=" ")
    stop.set()
    for thread in threads:
        thread.join()
    lasting.send("alive\\n")
    lasting.wait_for("alive", timeout=30)
    print(bad)
"""

#: A child lives on while the parent closes; who answered calls ends all the same.
OUTLIVED = """
import os, sys, threading
import handrail

read_end, write_end = os.pipe()
with handrail.Workspace(sys.argv[1]) as ws:
    process = ws.start([sys.executable, "-c", sys.argv[2]])
    process.wait_for("ready", timeout=30)
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the parent has closed it
        os._exit(0)
print([thread.name for thread in threading.enumerate() if "attendant" in thread.name])
os.close(write_end)
print(os.waitpid(pid, 0)[1])
"""

CALLS = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    socket.socketpair(socket.AF_UNIX, kind)
try:
    socket.socket(socket.AF_UNIX).connect("nobody")
except OSError:
    print("ready", flush=True)
sys.stdin.read()
"""


def script(text: str, *words: str) -> str:
    """What a program of its own says: forks beside the threads of the tests tell nothing."""
    argv = [sys.executable, "-W", "ignore", "-c", text, *words]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=55, check=True).stdout


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_children_of_a_fork_have_workspaces_of_their_own(tmp_path: Path, sandbox: str) -> None:
    assert script(FORKS, str(tmp_path), sandbox) == "0 " * 12 + "[]\n"


def test_a_child_that_lives_on_holds_up_no_end(tmp_path: Path) -> None:
    assert script(OUTLIVED, str(tmp_path), CALLS) == "[]\n0\n"
