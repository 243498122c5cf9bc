"""What a workspace promises at every executor there is, near and far."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncWorkspace, ExitKind, FilesError, UsageError
from tests.executor.places import Place, Room, run_in
from tests.support.eventually import PATIENCE, eventually_so
from tests.support.processes import alive

Main = Callable[[AsyncWorkspace, Room], Awaitable[None]]
Everywhere = Callable[[Main], None]

#: A descendant that never stops to write; the command itself has exited.
TALKS_ON = "(while :; do echo x; sleep 0.05; done) & exit 0"


@contextlib.asynccontextmanager
async def workspace_in(room: Room) -> AsyncIterator[AsyncWorkspace]:
    async with AsyncWorkspace(room.base, sandbox="off", executor=room.executor) as ws:
        yield ws


@pytest.fixture
def everywhere(executor_place: Place, tmp_path: Path) -> Everywhere:
    """Run a test in a workspace at an executor of each kind."""

    def run(main: Main) -> None:
        async def inside(room: Room) -> None:
            async with workspace_in(room) as ws:
                await main(ws, room)

        run_in(executor_place.name, tmp_path, inside, server=executor_place.server)

    return run


@pytest.mark.parametrize("how", [{}, {"timeout": 20}, {"wait": 20}], ids=str)
def test_a_descendant_that_talks_on_keeps_no_result(
    everywhere: Everywhere, how: dict[str, Any]
) -> None:
    async def main(ws: AsyncWorkspace, room: Room) -> None:
        result = await ws.run(TALKS_ON, **how)
        assert result.exit is not None
        assert (result.exit.kind, result.exit.code) == (ExitKind.EXITED, 0)
        assert result.held_open
        assert not result.timed_out
        assert set(result.stdout) <= {"x", "\n"}
        process = await ws.start(TALKS_ON)
        assert (await process.result()).held_open
        more = len((await process.result()).stdout)
        await process.wait_for("(x\n){9}", exit=False)  # and it is not cut off by that
        assert len((await process.result()).stdout) > more

    everywhere(main)


def test_a_timeout_ends_one_whose_descendant_talks_on(everywhere: Everywhere) -> None:
    async def main(ws: AsyncWorkspace, room: Room) -> None:
        script = "(while :; do echo x; sleep 0.05; done) & echo $! >&2; wait"
        for seconds in PATIENCE:
            result = await ws.run(script, timeout=seconds)
            if result.stderr:
                break
        assert result.timed_out
        if room.ours:
            pid = int(result.stderr.split()[0])
            await eventually_so(lambda: not alive(pid))
            assert not result.held_open

    everywhere(main)


def test_input_ends_or_is_refused(everywhere: Everywhere) -> None:
    async def main(ws: AsyncWorkspace, room: Room) -> None:
        assert (await ws.run(["cat"], input="")).stdout == ""
        assert (await ws.run(["cat"], input="typed\n", tty=True)).exit_code == 0
        if room.ours:
            assert (await ws.run(["cat"], input="all of it")).stdout == "all of it"
            return
        with pytest.raises(UsageError, match="tty=True"):
            await ws.run(["touch", "started"], input="all of it")
        assert not (room.base / "started").exists()

    everywhere(main)


def test_what_makes_no_sense_is_refused_before_anything_is_sent(everywhere: Everywhere) -> None:
    async def main(ws: AsyncWorkspace, room: Room) -> None:
        process = await ws.start("cat", tty=True)
        wrong: Any
        for wrong in (-1, None, "1", float("nan"), float("inf")):
            with pytest.raises(UsageError, match="grace must be seconds"):
                await process.terminate(wrong)
        for wrong in ((0, 4), (4, 0), (-1, 4), (4, 65_536), ("a", 3), (1.5, 2)):
            with pytest.raises(UsageError, match="1 to 65535 rows and columns"):
                await process.resize(*wrong)
            with pytest.raises(UsageError, match="1 to 65535 rows and columns"):
                await ws.start("cat", tty=True, size=wrong)
        for wrong in ((1,), (1, 2, 3), 5, None):
            with pytest.raises(UsageError, match="rows, columns"):
                await ws.start("cat", tty=True, size=wrong)
        for wrong in (b"x", 5, None, ["x"], re.compile(b"x")):
            with pytest.raises(UsageError, match="a pattern is a str"):
                await process.wait_for(wrong, timeout=0)
        for wrong in ("5", -1, float("nan")):
            with pytest.raises(UsageError, match="timeout must be seconds"):
                await process.send("x", timeout=wrong)
        assert process.running

    everywhere(main)


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_a_directory_where_a_file_is(everywhere: Everywhere, sandbox: Any) -> None:
    async def main(ws: AsyncWorkspace, room: Room) -> None:
        async with AsyncWorkspace(room.base, sandbox=sandbox, executor=room.executor) as other:
            if sandbox != "off" and not room.ours:  # see ``test_sandboxed_files`` of the executors
                with pytest.raises(FilesError):
                    await other.files.write("file", "")
                return
            await other.files.write("file", "")
            await other.run("cat file", check=True)
            for path, kind in (("file", "exists"), ("file/below", "not_a_directory")):
                for parents in (True, False):
                    with pytest.raises(FilesError) as info:
                        await other.files.mkdir(path, parents=parents)
                    assert info.value.kind == kind

    everywhere(main)


def test_what_is_opened_is_closed_by_async_with(everywhere: Everywhere) -> None:
    async def main(ws: AsyncWorkspace, room: Room) -> None:
        async with ws.start("exec sleep 600") as process:
            assert process.running
        assert not process.running
        async with ws.shell() as shell:
            assert (await shell.run("echo one")).stdout == "one\n"
        assert not shell.alive
        if room.ours:
            async with ws.files.watch() as changes:
                await ws.files.write("new", "x")
                change = await changes.next(timeout=30)
                assert change is not None
                assert change.path == "new"
        first, second = await asyncio.gather(ws.start("exit 3"), asyncio.create_task(ws.shell()))
        assert (await first.result()).exit_code == 3
        await second.close()
        with pytest.raises(UsageError, match="did you mean 'timeout'"):
            await ws.start("true", timeuot=3)  # type: ignore[call-arg]

    everywhere(main)


def test_a_directory_that_is_read_is_the_error_of_python(everywhere: Everywhere) -> None:
    async def main(ws: AsyncWorkspace, room: Room) -> None:
        await ws.files.mkdir("folder")
        with pytest.raises(IsADirectoryError, match="folder") as caught:
            await ws.files.read("folder")
        assert isinstance(caught.value, FilesError)
        assert caught.value.kind == "is_a_directory"

    everywhere(main)
