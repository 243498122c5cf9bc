"""A scripted executor behind the synchronous API: the test is in another thread than the script."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from handrail import AsyncWorkspace, ExitKind, UsageError, Workspace
from handrail.testing import Exit, FakeExecutor, Pause, Say


@pytest.mark.parametrize("root", [".", "/box/app", "~/project", "/box/deep/er"])
def test_any_root_is_there(root: str) -> None:
    fake = FakeExecutor()
    fake.replies("true")
    with Workspace(root, executor=fake) as ws:
        assert ws.run("true").ok
        ws.files.write("notes", "x")
        assert [entry.name for entry in ws.files.list()] == ["notes"]


def test_a_root_of_this_machine(tmp_path: Path) -> None:
    with Workspace(tmp_path, executor=FakeExecutor()) as ws:
        assert ws.root == str(tmp_path)


def test_a_file_is_no_root() -> None:
    fake = FakeExecutor()
    fake.files.content["/workspace/file"] = b""
    with pytest.raises(Exception, match="is no directory"), Workspace("file", executor=fake):
        pass


def test_going_on_while_the_result_is_waited_for() -> None:
    fake = FakeExecutor()
    fake.on("build", Say(b"one\n"), Pause(), Say(b"two\n"), Exit(3))
    with Workspace(executor=fake) as ws:
        process = ws.start("build")
        assert process.wait_for("one", timeout=20)
        found = []
        waiting = threading.Thread(target=lambda: found.append(process.result()))
        waiting.start()
        fake.sessions[process.id].resume()
        waiting.join(20)
        assert [(r.stdout, r.exit_code) for r in found] == [("one\ntwo\n", 3)]


def test_saying_something_while_it_is_waited_for() -> None:
    fake = FakeExecutor()
    fake.on("serve", Say(b"up\n"), Pause())
    with Workspace(executor=fake) as ws:
        process = ws.start("serve")
        found = []
        waiting = threading.Thread(
            target=lambda: found.append(process.wait_for("hello", timeout=20))
        )
        waiting.start()
        fake.sessions[process.id].say(b"hello\n")
        waiting.join(20)
        assert [waited.match for waited in found] == ["hello"]
        fake.sessions[process.id].say(b"and more\n")
        assert process.wait_for("more", timeout=20)  # what was said comes first


def test_an_executor_that_is_closed_elsewhere() -> None:
    fake = FakeExecutor()
    fake.on("serve", Pause())
    with Workspace(executor=fake) as ws:
        process = ws.start("serve")
        asyncio.run(fake.close())
        info = process.wait(20)
        assert info is not None
        assert info.kind is ExitKind.TERMINATED


async def test_sizes_that_no_terminal_has() -> None:
    fake = FakeExecutor()
    fake.on("vi", Pause())

    async with AsyncWorkspace(executor=fake) as ws:
        with pytest.raises(UsageError, match="1 to 65535"):
            await ws.start("vi", tty=True, size=(0, 0))
        process = await ws.start("vi", tty=True)
        with pytest.raises(UsageError, match="1 to 65535"):
            await process.resize(0, 0)
        assert fake.sessions[process.id].sizes == []
