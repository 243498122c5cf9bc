"""Workspace as users' tests and long programs meet it: scripted executors, threads, no leaks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server.process_kit import children, descriptors

import handrail
from handrail import CommandFailed, Output, Workspace
from handrail.testing import Exit, Expect, FakeExecutor, Say
from handrail.workspace import bridge


def test_a_scripted_executor_stands_in() -> None:
    fake = FakeExecutor()
    fake.on("pytest -q", Say(b"2 passed\n"), Exit(0))
    fake.on(["ask"], Say(b"name? "), Expect(b"me\n"), Say(b"hello me\n"))
    fake.files.content["/repo"] = None
    with Workspace("/repo", executor=fake) as ws:
        assert ws.run("pytest -q").stdout == "2 passed\n"
        process = ws.start(["ask"])
        assert process.wait_for(r"name\?", timeout=20)
        process.send("me\n")
        assert process.wait_for("hello (.*)", timeout=20).match == "hello me"
        with pytest.raises(handrail.ExecutorSpawnFailed):
            ws.run("nothing fits this")


def test_one_shot(tmp_path: Path) -> None:
    assert handrail.run("pwd", cwd=tmp_path, sandbox="off").stdout == f"{tmp_path}\n"
    with pytest.raises(CommandFailed):
        handrail.run("exit 1", cwd=tmp_path, sandbox="off", check=True)
    assert handrail.run(["cat"], cwd=tmp_path, sandbox="off", input="x", text=False).stdout == b"x"


def test_one_workspace_for_many_threads(ws: Workspace) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: ws.run(f"echo {n}").stdout, range(40)))
    assert results == [f"{n}\n" for n in range(40)]


def test_a_listener_runs_in_a_thread_of_its_own(ws: Workspace) -> None:
    threads = set()

    def told(output: Output) -> None:
        threads.add(threading.current_thread())

    ws.run("echo a; echo b >&2", on_output=told)
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.name != "handrail"

    def refuses(output: Output) -> None:
        raise LookupError(output.text)

    with pytest.raises(LookupError, match="x"):
        ws.run("echo x; sleep 0.05; echo y", on_output=refuses)


def test_a_thousand_runs_leak_nothing(ws: Workspace) -> None:
    ws.run("true")
    before = descriptors(), set(children(os.getpid())), threading.active_count()
    for _ in range(1000):
        ws.run(["echo", "hello"])
    assert (descriptors(), set(children(os.getpid())), threading.active_count()) == before

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    assert bridge.call(tasks()) <= 2  # this one, and perhaps one that forgets the last of them
    assert ws.processes == []


def test_sandboxed_runs_leak_nothing(tmp_path: Path) -> None:
    with Workspace(tmp_path) as ws:
        ws.run("true")
        before = descriptors()
        for _ in range(30):
            ws.run(["echo", "hello"])
        assert descriptors() == before
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("reader", ["iter(p)", "p.follow()"])
def test_a_reader_that_is_left_over_keeps_no_interpreter(tmp_path: Path, reader: str) -> None:
    script = f"""
from handrail import Workspace
ws = Workspace({str(tmp_path)!r}, sandbox="off")
p = ws.start("yes")
events = {reader}
next(events)
p.terminate()
ws.close()
print("closed")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_what_was_seen_to_end_is_kept_by_its_holder_alone(tmp_path: Path) -> None:
    with Workspace(tmp_path, sandbox="off") as ws:
        ended = ws.start("echo one")
        assert ended.result().stdout == "one\n"
        running = ws.start("sleep 600")
        assert [process.id for process in ws.processes] == [running.id]
