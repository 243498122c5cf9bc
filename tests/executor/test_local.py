"""What is particular to processes of this machine."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from handrail.errors import ExecutorSpawnFailed, UsageError
from handrail.executor.base import SpawnRequest
from handrail.executor.local import LocalExecutor
from handrail.process.exit_status import ExitKind
from handrail.sandbox.profile import Intent, workspace_write
from tests.executor.places import ENV, Main, Room, collect, run_in, said
from tests.support.eventually import eventually_so
from tests.support.processes import children, descriptors, ended, kilobytes

Near = Callable[[Main], None]


def test_the_keeper_comes_with_the_first_process_and_is_shared(near: Near) -> None:
    async def main(room: Room) -> None:
        before = children()
        sessions = await asyncio.gather(*(room.sh("cat") for _ in range(8)))
        assert len(children() - before) == 1
        for session in sessions:
            await session.terminate()

    near(main)


def test_a_thousand_runs_leave_nothing(tmp_path: Path) -> None:
    before = children()  # other tests may have a server

    async def main(room: Room) -> None:
        async def some(count: int) -> None:
            for _ in range(count):
                assert await room.done("echo out; echo err >&2") == (b"out\n", b"err\n", 0)

        await some(50)
        gc.collect()
        fds, memory = len(descriptors()), kilobytes(os.getpid(), "VmRSS")
        (keeper,) = children() - before
        keeper_fds = len(descriptors(keeper))
        await some(950)
        gc.collect()
        await eventually_so(
            lambda: len(descriptors()) <= fds and len(descriptors(keeper)) <= keeper_fds,
            "no more descriptors than before",
        )
        assert kilobytes(os.getpid(), "VmRSS") < memory + 8 * 1024

    run_in("local", tmp_path, main)


def test_descriptors_are_passed_on(near: Near) -> None:
    async def main(room: Room) -> None:
        read_end, write_end = os.pipe()
        try:
            session = await room.sh("echo through >&7", inherited_fds=((7, write_end),))
            assert (await session.wait()).code == 0
            assert os.read(read_end, 100) == b"through\n"
        finally:
            os.close(read_end)
            os.close(write_end)

    near(main)


def test_a_sandboxed_command_is_refused_descriptors(near: Near) -> None:
    """They were left out without a word."""

    async def main(room: Room) -> None:
        with pytest.raises(UsageError, match="gets no inherited_fds"):
            await room.sh(
                "touch was-run", inherited_fds=((7, 1),), sandbox=workspace_write((b"/",))
            )
        assert not (room.base / "was-run").exists()
        session = await room.sh(": >&7", inherited_fds=((7, 1),), sandbox=Intent(disabled=True))
        assert (await session.wait()).code == 0

    near(main)


def test_words_that_are_not_text(near: Near) -> None:
    async def main(room: Room) -> None:
        argv = (b"/bin/sh", b"-c", b'printf %s "$1"', b"sh", b"\xff\xfe")
        session = await room.executor.spawn(SpawnRequest("raw", argv, "/", ENV))
        assert (await collect(session))[0] == b"\xff\xfe"
        with pytest.raises(ExecutorSpawnFailed):
            await room.start("echo", "nul\0")
        with pytest.raises(ExecutorSpawnFailed, match="a name must not be empty"):
            await room.sh("true", env={"": "x"})

    near(main)


def test_a_keeper_that_is_killed(near: Near) -> None:
    async def main(room: Room) -> None:
        before = children()
        session = await room.sh("echo ready; sleep 1000")
        await said(session, b"ready")
        (keeper,) = children() - before
        os.kill(keeper, signal.SIGKILL)
        exit_info = await session.wait()
        assert (exit_info.kind, exit_info.code) == (ExitKind.LOST, None)
        await session.terminate()
        await session.signal("term")
        # The next one gets a new keeper.
        assert await room.done("echo again") == (b"again\n", b"", 0)

    near(main)


def test_file_helpers_go_with_a_keeper_that_is_killed(near: Near) -> None:
    async def main(room: Room) -> None:
        before = children()
        intent = workspace_write((os.fsencode(room.base),), slash_tmp=False, tmpdir=False)
        files = room.executor.files.sandboxed(intent)
        await files.write(f"{room.base}/a", b"one")
        assert await files.read(f"{room.base}/a") == b"one"
        (keeper,) = children() - before
        helpers = children(keeper)
        assert len(helpers) == 2
        os.kill(keeper, signal.SIGKILL)
        executor = room.executor
        assert isinstance(executor, LocalExecutor)
        await eventually_so(lambda: executor._launcher is None, "the loss is known")
        assert all(await asyncio.gather(*(asyncio.to_thread(ended, pid) for pid in helpers)))
        # The next calls get a new keeper, and new helpers.
        await files.write(f"{room.base}/a", b"two")
        assert await files.read(f"{room.base}/a") == b"two"

    near(main)


def test_an_executor_belongs_to_one_loop() -> None:
    executor = LocalExecutor()
    request = SpawnRequest("p", ("/bin/true",), "/", ENV)

    async def first() -> None:
        assert (await (await executor.spawn(request)).wait()).code == 0

    async def second() -> None:
        with pytest.raises(ExecutorSpawnFailed, match="another event loop"):
            await executor.spawn(request)
        await executor.close()

    with asyncio.Runner() as one, asyncio.Runner() as two:
        one.run(first())
        two.run(second())


def test_a_session_that_nobody_holds_goes_on(near: Near) -> None:
    async def main(room: Room) -> None:
        await room.sh("echo made >made; cat", process_id="dropped")
        gc.collect()
        await eventually_so((room.base / "made").exists, "it runs")
        again = await room.executor.attach("dropped")
        await again.write(b"still there")
        await said(again, b"still there")
        await again.terminate()

    near(main)
