"""Changes of files as events, near and far, sandboxed and not."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from handrail import AsyncFileWatch, AsyncWorkspace, FilesError, Profile, Workspace
from handrail.filesystem import syscalls
from handrail.filesystem.pool import FilePool
from handrail.filesystem.trees import tree_watch
from handrail.filesystem.trees.loop_watch import LoopWatch
from handrail.filesystem.trees.thread_watch import ThreadWatch
from handrail.sandbox.profile import PROTECTED_NAMES
from handrail.server.methods.file_watches import MOST_WATCHES
from tests.executor.chaos import chaos
from tests.executor.places import serving
from tests.support.coroutines import run
from tests.support.eventually import LIMIT, eventually_so
from tests.support.processes import descriptors
from tests.support.servers import serving as serving_here


async def until(watch: AsyncFileWatch, kind: str, path: str) -> list[tuple[str, str]]:
    """Everything that is told up to and with this change."""
    told: list[tuple[str, str]] = []
    async with asyncio.timeout(LIMIT):
        async for change in watch:
            told.append((change.kind, change.path))
            if told[-1] == (kind, path):
                return told
    raise AssertionError(f"it ended after {told}")


@asynccontextmanager
async def workspace(where: str, sandbox: Any, base: Path) -> AsyncIterator[AsyncWorkspace]:
    (base / "ws").mkdir()
    if where == "here":
        async with AsyncWorkspace(base / "ws", sandbox=sandbox) as ws:
            yield ws
    else:
        async with serving(base) as url, AsyncWorkspace(base / "ws", at=url, sandbox=sandbox) as ws:
            yield ws


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
@pytest.mark.parametrize("where", ["here", "there"])
def test_changes_are_told(where: str, sandbox: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with workspace(where, sandbox, tmp_path) as ws:
            await ws.files.mkdir("sub")
            async with await ws.files.watch() as watch:
                assert await watch.next(timeout=0) is None
                await ws.files.write("a", "1")
                assert await until(watch, "created", "a") == [("created", "a")]
                await ws.files.write("a", "2")  # by a stage, which is not told
                assert await until(watch, "changed", "a") == [("changed", "a")]
                await ws.run("mkdir -p sub/new/deep; echo x > sub/new/deep/file; mv a b")
                told = await until(watch, "created", "b")
                assert ("created", "sub/new") in told
                assert ("removed", "a") in told
                assert ("created", "sub/new/deep/file") in told
                await ws.files.remove("sub", recursive=True)
                await until(watch, "removed", "sub")
            assert [change async for change in watch] == []

    run(main())


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("where", ["here", "there"])
def test_covers_of_a_sandbox_are_not_told(where: str, recursive: bool, tmp_path: Path) -> None:
    """A missing .git has an empty directory in its place while a sandboxed command runs."""

    async def main() -> None:
        async with workspace(where, "workspace-write", tmp_path) as ws:
            running = await ws.start("sleep 600")  # its covers are there from the beginning
            async with ws.files.watch(recursive=recursive) as watch:
                await running.terminate()
                await ws.run("echo x > file")
                assert await until(watch, "created", "file") == [("created", "file")]
                repository = tmp_path / "ws/.git"
                await eventually_so(lambda: not repository.exists())
                repository.mkdir()
                (repository / "config").touch()
                told = await until(watch, "created", ".git")
                assert {path for _, path in told} <= {"file", ".git"}
                if recursive:
                    await until(watch, "created", ".git/config")
                (repository / "config").unlink()
                repository.rmdir()
                await until(watch, "removed", ".git")

    run(main())


def test_names_that_are_held_back_are_those_of_sandboxes() -> None:
    assert set(PROTECTED_NAMES) == tree_watch.COVERED


def test_one_file_and_no_recursion(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncWorkspace(tmp_path, sandbox="off") as ws:
            await ws.files.write("f", "1")
            await ws.files.mkdir("sub")
            async with (
                await ws.files.watch("f") as one,
                await ws.files.watch(".", recursive=False) as flat,
            ):
                await ws.files.write("other", "x")
                await ws.files.write("sub/below", "x")
                await ws.files.write("f", "2")
                assert await until(one, "changed", "") == [("changed", "")]
                told = await until(flat, "changed", "f")
                assert ("created", "other") in told
                assert not [path for _, path in told if path.startswith("sub/")]
                await ws.files.remove("f")
                await until(one, "removed", "")
            with pytest.raises(FileNotFoundError, match="missing"):
                await ws.files.watch("missing")

    run(main())


def test_the_end_of_what_is_watched_ends_the_watch(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with Workspace(tmp_path, sandbox="off") as ws, ws.files.watch("d") as watch:
        (tmp_path / "d/x").touch()
        (tmp_path / "d/x").unlink()
        (tmp_path / "d").rmdir()
        told = [(change.kind, change.path) for change in watch]
    assert told[-1] == ("removed", "")
    assert ("created", "x") in told


def test_a_lost_connection_is_a_gap(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as url, chaos(url, seed=1) as proxy:
            async with AsyncWorkspace(tmp_path, at=proxy.url, sandbox="off") as ws:
                async with await ws.files.watch(recursive=False) as watch:
                    reading = asyncio.create_task(watch.next())
                    await asyncio.sleep(0)
                    proxy.cut_all()
                    (tmp_path / "while-away").touch()
                    async with asyncio.timeout(LIMIT):
                        while (change := await reading) is not None and change.kind != "gap":
                            reading = asyncio.create_task(watch.next())
                    assert change is not None
                    (tmp_path / "afterwards").touch()
                    await until(watch, "created", "afterwards")

    run(main())


def test_dropped_events_are_a_gap_and_watching_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = tree_watch.TreeWatch(tmp_path.as_posix())
    real = syscalls.inotify_events
    try:
        (tmp_path / "new").mkdir()
        overflow = (-1, syscalls.IN_Q_OVERFLOW, b"")
        monkeypatch.setattr(syscalls, "inotify_events", lambda data: [overflow])
        assert watch.wait(LIMIT) == tree_watch.Happened([], gap=True)
        monkeypatch.setattr(syscalls, "inotify_events", real)
        (tmp_path / "new/file").touch()
        events = watch.wait(LIMIT).events
        assert events == [tree_watch.FileEvent("created", b"new/file")]
    finally:
        watch.close()


def test_two_reads_at_once_take_turns_and_an_end_wakes_them(tmp_path: Path) -> None:
    async def main() -> None:
        pool = FilePool(2)
        watch = await LoopWatch.lay(pool, tmp_path.as_posix(), recursive=True)
        first, second = (asyncio.create_task(watch.read(10)) for _ in range(2))
        await asyncio.sleep(0)
        (tmp_path / "new").touch()
        async with asyncio.timeout(LIMIT):
            assert (await first).events[0] == tree_watch.FileEvent("created", b"new")
            third = asyncio.create_task(watch.read(10))
            await asyncio.sleep(0)
            watch.stop()
            assert (await third).ended
        await second
        assert await watch.read(10) == tree_watch.Happened([], ended=True)
        pool.close()

    run(main())


def test_the_end_of_a_watch_waits_for_the_thread_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the thread would read what has got the number of its fd meanwhile."""
    begun, goes_on, open_then = threading.Event(), threading.Event(), []
    read = tree_watch.TreeWatch.read

    def slow(watch: tree_watch.TreeWatch) -> tree_watch.Happened:
        begun.set()
        assert goes_on.wait(LIMIT)
        open_then.append(watch.fileno() >= 0)
        return read(watch)

    monkeypatch.setattr(tree_watch.TreeWatch, "read", slow)

    async def main() -> None:
        pool = FilePool(2)
        watch = await LoopWatch.lay(pool, tmp_path.as_posix(), recursive=True)
        reading = asyncio.create_task(watch.read(10))
        await asyncio.sleep(0)
        (tmp_path / "new").touch()
        assert await asyncio.to_thread(begun.wait, LIMIT)
        watch.stop()
        goes_on.set()
        await reading
        assert await watch.read(10) == tree_watch.Happened([], ended=True)
        pool.close()

    run(main())
    assert open_then == [True]


def test_a_thread_that_waits_is_woken_by_the_end_and_closes_behind_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, open_then = threading.Event(), threading.Event(), []
    read = tree_watch.TreeWatch.read

    def slow(watch: tree_watch.TreeWatch) -> tree_watch.Happened:
        begun.set()
        assert goes_on.wait(LIMIT)
        open_then.append(watch.fileno() >= 0)
        return read(watch)

    monkeypatch.setattr(tree_watch.TreeWatch, "read", slow)
    before = descriptors()
    watch = ThreadWatch(tree_watch.TreeWatch(tmp_path.as_posix()))
    reading = threading.Thread(target=watch.wait, args=(LIMIT,))
    reading.start()
    watch.end()  # which the thread notices now, not when its wait is over
    if not begun.wait(1):  # or it was not waiting yet, and never does
        assert not reading.is_alive()
    goes_on.set()
    reading.join(LIMIT)
    assert not reading.is_alive()
    assert open_then in ([True], [])
    assert watch.wait(10) == tree_watch.Happened([], ended=True)
    assert descriptors() == before


def test_watches_that_are_laid_at_once_are_not_more_than_one_may_have(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving_here() as served:
            client = await served.client()
            calls = [
                client.post("fs/watch", watch=str(n), path=tmp_path.as_uri(), recursive=False)
                for n in range(MOST_WATCHES + 20)
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            refused = [str(one) for one in answers if isinstance(one, Exception)]
            assert len(refused) == 20
            assert all("paths may be watched" in one for one in refused)
            laid = [str(n) for n, one in enumerate(answers) if not isinstance(one, Exception)]
            again = {"watch": laid[0], "path": tmp_path.as_uri(), "recursive": False}
            await client.call("fs/unwatch", watch=laid[1])
            await client.call("fs/watch", again)  # of the same name: instead of that one
            assert len(served.connection(client).files.watches) == MOST_WATCHES - 1

    run(main())


def test_hidden_directories_are_not_watched(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "secret").mkdir()
        async with AsyncWorkspace(tmp_path, sandbox=Profile(write=(".",), deny=("secret",))) as ws:
            async with await ws.files.watch() as watch:
                (tmp_path / "secret/name").touch()
                await ws.files.write("seen", "x")
                told = await until(watch, "created", "seen")
                assert not [path for _, path in told if "name" in path]
            with pytest.raises(FilesError):
                for _ in range(9):
                    await ws.files.watch()

    run(main())
    assert os.path.exists(tmp_path / "seen")


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_workspace_that_is_closed_before_its_watch_logs_nothing(
    where: str, tmp_path: Path
) -> None:
    logged: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: logged.append(context))
        async with workspace(where, "workspace-write", tmp_path) as ws:
            watch = await ws.files.watch()
            assert await watch.next(timeout=0.01) is None  # the watch reads on
            reading = watch._reading
            assert reading is not None
        await eventually_so(reading.done)
        del reading, watch
        gc.collect()
        await asyncio.sleep(0)

    run(main())
    assert logged == []
