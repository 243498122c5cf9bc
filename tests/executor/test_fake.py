"""The scripted executor: what a user's test can say and see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from handrail.errors import ExecutorSpawnFailed, FilesError, ProcessUnknown, WriteFailed
from handrail.executor.base import Executor, SpawnRequest, WaitReason
from handrail.process.exit_status import ExitKind
from handrail.testing import Exit, Expect, FakeExecutor, Pause, Say
from tests.executor.places import collect


def run(main: Callable[[FakeExecutor], Awaitable[None]], fake: FakeExecutor) -> None:
    async def inside() -> None:
        async with asyncio.timeout(20):
            await main(fake)
            await fake.close()

    asyncio.run(inside())


def request(*argv: str, key: str = "p", **how: object) -> SpawnRequest:
    return SpawnRequest(key, argv, "/", {}, **how)  # type: ignore[arg-type]


def test_replies_and_what_was_asked(fake_executor: FakeExecutor) -> None:
    async def main(fake: FakeExecutor) -> None:
        executor: Executor = fake  # it keeps to the contract
        fake.replies("make -j2", b"built\n", stderr=b"warning\n", code=2)
        session = await executor.spawn(request("/bin/sh", "-c", "make -j2"))
        assert await collect(session) == (b"built\n", b"warning\n")
        assert (await session.wait()).code == 2
        other = await executor.spawn(request("make", "-j2", key="q"))
        assert (await other.wait()).code == 2
        assert [r.process_id for r in fake.requests] == ["p", "q"]

    run(main, fake_executor)


def test_a_dialogue(fake_executor: FakeExecutor) -> None:
    async def main(fake: FakeExecutor) -> None:
        fake.on(
            ["python3", "-i"], Say(b">>> "), Expect(b"1 + 1\n"), Say(b"2\n>>> "), Pause(), Exit(4)
        )
        session = await fake.spawn(request("python3", "-i", tty=True))
        assert (await session.wait_for(">>> ", timeout=5)).position == 4
        await session.write(b"1 + ")
        await session.write(b"1\n")
        found = await session.wait_for(r"\d", timeout=5, start=4)
        assert (found.reason, found.match) == (WaitReason.PATTERN, b"2")
        await session.resize(40, 100)
        assert session.try_exit_status() is None
        fake.sessions["p"].resume()
        assert (await session.wait()).code == 4
        assert bytes(session.written) == b"1 + 1\n"
        assert session.sizes == [(40, 100)]
        with pytest.raises(WriteFailed, match="has exited"):
            await session.write(b"more")

    run(main, fake_executor)


def test_ends(fake_executor: FakeExecutor) -> None:
    async def main(fake: FakeExecutor) -> None:
        fake.on(lambda request: request.argv[0] == "sleep", Pause())
        one = await fake.spawn(request("sleep", key="one"))
        await one.terminate()
        assert (await one.wait()).kind is ExitKind.TERMINATED
        two = await fake.spawn(request("sleep", key="two"))
        await two.signal("interrupt")
        assert (await two.wait()).signal == "SIGINT"
        assert (await fake.attach("two")) is two
        with pytest.raises(ProcessUnknown):
            await fake.attach("three")

    run(main, fake_executor)


def test_refusals(fake_executor: FakeExecutor) -> None:
    async def main(fake: FakeExecutor) -> None:
        fake.fails("missing")
        with pytest.raises(ExecutorSpawnFailed, match="No such file"):
            await fake.spawn(request("missing"))
        with pytest.raises(ExecutorSpawnFailed, match="no script fits"):
            await fake.spawn(request("unknown"))
        with pytest.raises(ExecutorSpawnFailed, match="LinuxSeccomp is not supported"):
            await fake.spawn(request("missing", sandbox="LinuxSeccomp"))

    run(main, fake_executor)


def test_files_in_memory(fake_executor: FakeExecutor) -> None:
    async def main(fake: FakeExecutor) -> None:
        files = fake.files
        await files.mkdir("/a/b")
        await files.write("/a/b/c", b"data")
        await files.copy("/a", "/z", recursive=True)
        assert await files.read("/z/b/c") == b"data"
        assert [(e.name, e.is_directory) for e in await files.list("/a")] == [("b", True)]
        await files.remove("/z", recursive=True)
        for path in ("/z/b/c", "/z"):
            with pytest.raises(FilesError) as caught:
                await files.metadata(path)
            assert caught.value.kind == "not_found"
        with pytest.raises(FilesError, match="not absolute"):
            await files.read("relative")

    run(main, fake_executor)
