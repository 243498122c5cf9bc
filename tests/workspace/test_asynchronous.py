"""AsyncWorkspace on this machine: results, times, input, cleaning up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from handrail import (
    AsyncWorkspace,
    CommandFailed,
    ExecutorSpawnFailed,
    ExitKind,
    FilesError,
    Output,
    UsageError,
)
from handrail.executor.base import Executor
from handrail.executor.local import LocalExecutor
from handrail.testing import memory_executor
from tests.support.eventually import LIMIT, PATIENCE, eventually_so
from tests.support.processes import alive, children, until_ended


def open_at(root: Path) -> AsyncWorkspace:
    return AsyncWorkspace(root, sandbox="off")


async def test_a_result_has_it_all(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        result = await ws.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert result.exit is not None
    assert result.exit.kind is ExitKind.EXITED
    assert result.duration > 0
    assert (result.denials, result.omitted, result.held_open) == ((), 0, False)
    assert not result.ok


async def test_words_are_not_seen_by_a_shell(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        result = await ws.run(["printf", "%s|", "$HOME", b"a b", Path("*")])
    assert result.stdout == "$HOME|a b|*|"


async def test_bytes_are_left_alone(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        raw = await ws.run(["printf", r"\377\0a"], text=False)
        text = await ws.run(["printf", r"\377a"])
    assert raw.stdout == b"\xff\0a"
    assert text.stdout == "\ufffda"


async def test_only_check_makes_an_exit_an_error(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        assert (await ws.run("true", check=True)).ok
        with pytest.raises(
            CommandFailed, match=r"`echo why >&2; exit 7` exited with 7.*why"
        ) as info:
            await ws.run("echo why >&2; exit 7", check=True)
        assert info.value.result.exit_code == 7
        with pytest.raises(CommandFailed, match="SIGTERM"):
            await ws.run("kill -TERM $$", check=True)


async def test_a_timeout_ends_the_whole_tree(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        for seconds in PATIENCE:
            result = await ws.run("setsid sleep 600 & echo $!; wait", timeout=seconds)
            if result.stdout:
                break
        assert result.timed_out
        assert result.exit is not None
        assert result.exit.kind is ExitKind.TIMED_OUT
        await until_ended(int(result.stdout))


async def test_a_timeout_ends_one_that_does_not_listen(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        for seconds in PATIENCE:
            script = "trap '' TERM HUP; echo deaf; while :; do sleep 0.05; done"
            result = await ws.run(script, timeout=seconds)
            if result.stdout:
                break
    assert result.timed_out
    assert result.exit_code == 137


async def test_wait_returns_early_and_leaves_it_running(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        result = await ws.run("echo begun; read line; echo $line", wait=LIMIT, input=None)
        assert result.exit is not None  # its stdin is empty, so it does not wait at all
        for seconds in PATIENCE:
            result = await ws.run("echo begun; sleep 600", wait=seconds)
            if result.stdout:
                break
            await result.process.terminate()
        assert (result.stdout, result.exit, result.exit_code) == ("begun\n", None, None)
        assert result.process.running
        with pytest.raises(CommandFailed, match="still runs"):
            result.check()
        await result.process.terminate()
        end = await result.process.result()
        assert end.exit.kind is ExitKind.TERMINATED


async def test_input_is_all_of_stdin(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        assert (await ws.run(["cat"], input="text")).stdout == "text"
        big = os.urandom(3 << 20)
        assert (await ws.run(["cat"], input=big, text=False)).stdout == big
        assert (await ws.run(["head", "-c", "1"], input=big, text=False)).stdout == big[:1]
        assert (await ws.run(["cat"])).stdout == ""


async def test_ten_megabytes_arrive_whole(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        result = await ws.run("seq 1500000", text=False)
    assert result.omitted == 0
    assert result.stdout == b"".join(b"%d\n" % n for n in range(1, 1_500_001))


async def test_environment_and_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with AsyncWorkspace(tmp_path, sandbox="off", env={"A": "1", "B": "2"}) as ws:
        result = await ws.run('echo "$A$B$C"; pwd', env={"B": None, "C": "3"}, cwd="sub")
    assert result.stdout.splitlines() == ["13", str(tmp_path / "sub")]


async def test_what_outlives_the_command_is_told_and_ended_with_the_workspace(
    tmp_path: Path,
) -> None:
    async with open_at(tmp_path) as ws:
        result = await ws.run("sleep 600 & echo $!")
        assert result.held_open
        straggler = int(result.stdout)
        assert alive(straggler)
    assert not alive(straggler)


async def test_leaving_ends_everything(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    async with open_at(tmp_path) as ws:
        for tty in (False, True):
            process = await ws.start("setsid sleep 600 & echo $!; cat", tty=tty)
            await process.wait_for(r"\d+")
    assert set(children(os.getpid())) == before


async def test_a_cancelled_run_leaves_nothing(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        begun = asyncio.Event()
        pids: list[int] = []

        def told(output: Output) -> None:
            pids.extend(map(int, output.text.split()))
            begun.set()

        task = asyncio.create_task(ws.run("sleep 600 & echo $!; wait", on_output=told))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_ended(pids[0])
        assert (await ws.run("echo on")).stdout == "on\n"


async def test_a_cancelled_workspace_leaves_nothing(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    begun = asyncio.Event()

    async def work() -> None:
        async with open_at(tmp_path) as ws:
            await ws.start("sleep 600")
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(children(os.getpid())) == before


async def test_a_listener_hears_all_and_its_error_comes_back(tmp_path: Path) -> None:
    heard: list[str] = []

    async def slowly(output: Output) -> None:
        await asyncio.sleep(0)
        heard.append(output.text)

    async with open_at(tmp_path) as ws:
        await ws.run("for i in 1 2 3; do echo $i; done", on_output=slowly)
        assert "".join(heard) == "1\n2\n3\n"

        def refuses(output: Output) -> None:
            raise KeyError(output.text)

        with pytest.raises(KeyError, match="x"):
            await ws.run("echo x", on_output=refuses)


async def test_two_workspaces_share_one_keeper(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    async with open_at(tmp_path) as one, open_at(tmp_path) as two:
        await asyncio.gather(one.run("true"), two.run("true"))
        assert len(set(children(os.getpid())) - before) == 1
        await one.close()
        assert (await two.run("echo still")).stdout == "still\n"
    assert set(children(os.getpid())) == before


async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with open_at(tmp_path) as ws:
        for command in ("", "  ", [], [""], ["a\0b"], b"true"):
            with pytest.raises(UsageError):
                await ws.run(command)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="timeout"):
            await ws.run("true", timeout=-1)
        with pytest.raises(UsageError, match="environment name"):
            await ws.run("true", env={"A=B": ""})
        with pytest.raises(UsageError, match="no sandbox 'open'"):
            await ws.run("true", sandbox="open")  # type: ignore[call-overload]
        with pytest.raises(ExecutorSpawnFailed, match="no-such-program"):
            await ws.run(["no-such-program"])
    with pytest.raises(UsageError, match="closed"):
        await ws.run("true")


async def test_a_root_that_is_missing_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, kind in (("missing", "not_found"), ("file", "not_a_directory")):
        with pytest.raises(FilesError) as info:
            async with open_at(tmp_path / name):
                pass
        assert info.value.kind == kind


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_another_event_loop_is_refused_and_nothing_is_left(tmp_path: Path, run: Any) -> None:
    workspace = open_at(tmp_path)

    async def main() -> str:
        await workspace.start("sleep 1000")
        return (await workspace.run("echo here")).stdout

    assert run(main()) == "here\n"
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(main())
    asyncio.run(workspace.close())
    with pytest.raises(UsageError, match="closed"):
        asyncio.run(main())


async def test_closing_does_not_cancel_who_waits(tmp_path: Path) -> None:
    workspace = open_at(tmp_path)
    running = asyncio.ensure_future(workspace.run("echo begun; sleep 1000"))
    await eventually_so(lambda: workspace.processes)
    await workspace.processes[0].wait_for("begun", timeout=20)
    await workspace.close()
    result = await running
    assert result.stdout == "begun\n"
    assert result.exit is not None
    assert result.exit.kind is ExitKind.TERMINATED


async def test_a_listener_of_a_started_process(tmp_path: Path) -> None:
    heard: list[str] = []

    async def listener(output: Output) -> None:
        await asyncio.sleep(0)
        heard.append(output.text)
        if output.text == "bad\n":
            raise LookupError("bad")

    async with open_at(tmp_path) as ws:
        process = await ws.start("echo good", on_output=listener)
        assert (await process.result()).stdout == "good\n"
        process = await ws.start("echo bad", on_output=listener)
        await process.wait()
        with pytest.raises(LookupError, match="bad"):
            await process.result()
        # Nobody asks for this one, and nobody complains about it either.
        await (await ws.start("echo bad", on_output=listener)).wait()
    assert heard[:2] == ["good\n", "bad\n"]


@asynccontextmanager
async def _local() -> AsyncIterator[Executor]:
    executor = LocalExecutor()
    try:
        yield executor
    finally:
        await executor.close()


@pytest.mark.parametrize("opened", [_local, memory_executor])
@pytest.mark.parametrize("how", ["sleep 1000 &", "setsid sleep 1000 >/dev/null 2>&1 &"])
async def test_an_executor_of_the_callers_own_goes_on_without_what_was_left(
    opened: Any, how: str, tmp_path: Path
) -> None:
    async with opened() as executor:
        other = AsyncWorkspace(tmp_path, executor=executor, sandbox="off")
        stays = int((await other.run(f"{how} echo $!")).stdout)
        async with AsyncWorkspace(tmp_path, executor=executor, sandbox="off") as ws:
            pid = int((await ws.run(f"{how} echo $!")).stdout)
            await ws.run("true")
            assert alive(pid)
        await until_ended(pid)
        assert alive(stays)
        await other.close()
        await until_ended(stays)
