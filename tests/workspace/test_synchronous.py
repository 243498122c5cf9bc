"""Workspace as users' tests and long programs meet it: scripted executors, threads, no leaks."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import handrail
from handrail import CommandFailed, Output, UsageError, Workspace, private_places
from handrail.filesystem import other_root
from handrail.testing import Exit, Expect, FakeExecutor, Say
from handrail.workspace.synchronous import loop_thread
from tests.support.eventually import eventually
from tests.support.processes import alive, children, descriptors


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


def test_a_small_write_is_done_by_the_callers_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, threads = [], []
    real_call, real_write = loop_thread.call, other_root.write_file
    monkeypatch.setattr(loop_thread, "call", lambda work: calls.append(work) or real_call(work))

    def write(*given: Any, **options: Any) -> None:
        threads.append(threading.current_thread())
        real_write(*given, **options)

    monkeypatch.setattr(other_root, "write_file", write)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("file")
    with Workspace(tmp_path) as ws:
        ws.files.write("file", "first")
        calls.clear()
        threads.clear()
        ws.files.write("file", "second")
        assert len(calls) == 1  # of the loop, which looks at the plan
        assert threads == [threading.current_thread()]
        assert ws.files.read("file") == "second"
        # What it leaves to the helper, with its answers.
        ws.files.write("link", "third")
        assert (tmp_path / "file").read_text() == "third"
        assert (tmp_path / "link").is_symlink()
        with pytest.raises(IsADirectoryError):
            ws.files.write("there", "")
        with pytest.raises(PermissionError, match=r"cannot be written: .*Read-only"):
            ws.files.write(".git", "")
        with pytest.raises(FileNotFoundError):
            ws.files.write("missing/file", "")
        assert set(threads) == {threading.current_thread()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "there"]
    with pytest.raises(UsageError, match="closed"):
        ws.files  # noqa: B018 (the workspace is closed)


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

    assert loop_thread.call(tasks()) <= 2  # this one, and perhaps one that forgets the last of them
    assert ws.processes == []


def test_sandboxed_runs_leak_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # State directories of other tests' servers come and go, and each makes another plan.
    monkeypatch.setattr(private_places, "remembered", list)
    monkeypatch.setenv("HANDRAIL_WARM", "off")  # those that wait hold some
    with Workspace(tmp_path) as ws:
        ws.run("true")
        before = Counter(descriptors().values())
        for _ in range(30):
            ws.run(["echo", "hello"])
        # The last sandbox may be on its way out: its first process is waited for by a descriptor.
        eventually(lambda: not Counter(descriptors().values()) - before, "nothing more is open")
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


# --- listeners --------------------------------------------------------------------------------


async def _told(output: Output) -> None: ...


class _Told:
    async def __call__(self, output: Output) -> None: ...


@pytest.mark.parametrize("listener", [_told, functools.partial(_told), _Told()])
def test_a_listener_nobody_would_await_is_refused(
    ws: Workspace, listener: Callable[[Output], object], tmp_path: Path
) -> None:
    before = threading.active_count()
    for call in (ws.run, ws.start):
        with pytest.raises(UsageError, match="AsyncWorkspace"):
            call("echo > started", on_output=listener)
    with pytest.raises(UsageError, match="AsyncWorkspace"):
        handrail.run("echo > started", cwd=tmp_path, sandbox="off", on_output=listener)
    assert not (tmp_path / "started").exists()
    assert threading.active_count() == before


def test_a_listener_that_turns_out_to_need_awaiting(ws: Workspace) -> None:
    def hides(output: Output) -> object:
        return _told(output)

    with pytest.raises(UsageError, match="AsyncWorkspace"):
        ws.run("echo x", on_output=hides)


def test_what_a_listener_of_a_started_process_raises(ws: Workspace) -> None:
    def refuses(output: Output) -> None:
        raise LookupError(output.text)

    process = ws.start("echo x", on_output=refuses)
    assert process.wait() is not None
    with pytest.raises(LookupError, match="x"):
        process.result()


def test_no_thread_of_a_listener_is_left(ws: Workspace) -> None:
    before = set(threading.enumerate())
    heard: list[str] = []

    def hears(output: Output) -> None:
        heard.append(output.text)

    ws.start("echo started", on_output=hears).wait()
    result = ws.run("read x; echo later", wait=0.01, input=None, on_output=hears)
    late = ws.run("cat", wait=0.01, input="fed\n", on_output=hears)
    for process in (result.process, late.process):
        if process is not None:
            process.result()
    with pytest.raises(handrail.ExecutorSpawnFailed):
        ws.start(["/there/is/no/program"], on_output=hears)
    eventually(lambda: set(threading.enumerate()) == before)
    assert sorted(heard) == ["fed\n", "later\n", "started\n"]


# --- ends -------------------------------------------------------------------------------------


def test_processes_are_those_that_run(ws: Workspace) -> None:
    first, second = ws.start("cat"), ws.start("cat")
    third = ws.start("sleep 1000 & read x")
    assert [process.id for process in ws.processes] == [first.id, second.id, third.id]
    first.close_stdin()
    first.wait()
    third.send("\n")
    third.wait()
    assert [process.id for process in ws.processes] == [second.id]
    second.terminate()
    assert ws.processes == []


@pytest.mark.parametrize("how", ["sleep 1000 &", "setsid sleep 1000 >/dev/null 2>&1 &"])
def test_leaving_ends_what_exited_commands_have_left(
    ws: Workspace, tmp_path: Path, how: str
) -> None:
    ws.run("true")  # a neighbour that keeps the keeper
    with Workspace(tmp_path, sandbox="off") as leaving:
        pid = int(leaving.run(f"{how} echo $!").stdout)
        stays = int(ws.run(f"{how} echo $!").stdout)
        leaving.run("true")
        assert alive(pid)
    eventually(lambda: not alive(pid))
    assert alive(stays)


@pytest.mark.parametrize("input", ["abc", "abc\n", "", "a\nb"])
def test_input_of_a_terminal_ends(ws: Workspace, input: str) -> None:  # noqa: A002
    result = ws.run("stty -echo; cat", tty=True, input=input)
    assert result.exit_code == 0
    assert result.stdout.replace("\r", "").endswith(input)


@pytest.mark.parametrize("reading", ["follow", "__iter__"])
def test_leaving_while_a_reader_is_held(tmp_path: Path, reading: str) -> None:
    with Workspace(tmp_path, sandbox="off") as ws:
        process = ws.start("yes")
        events = getattr(process, reading)()
        assert isinstance(next(events), Output)
        session: Any = process._twin._session
        if reading == "follow":
            eventually(lambda: session._history._shut)
    # It was told how the process ended, so leaving did not give up waiting for that.
    assert process.exit is not None
    *_, last = events
    assert isinstance(last, handrail.Exited)


# --- closing while somebody is at it ------------------------------------------------------------


def test_who_waits_for_a_result_has_it_when_the_workspace_is_closed(tmp_path: Path) -> None:
    ws = Workspace(tmp_path, sandbox="off")
    with ThreadPoolExecutor(2) as pool:
        script = "trap 'echo over; exit 3' TERM; echo begun; while :; do sleep 0.01; done"
        running = pool.submit(ws.run, script)
        started = pool.submit(lambda: ws.start("cat").wait_for("never"))
        eventually(lambda: len(ws.processes) == 2)
        for process in ws.processes:
            if process.argv[-1] == script:
                assert process.wait_for("begun", timeout=20)
        ws.close()
        result = running.result(20)
        assert (result.stdout, result.exit_code) == ("begun\nover\n", 3)
        assert started.result(20).reason is handrail.WaitReason.EXIT


def test_a_reader_that_is_thrown_away_in_the_loops_own_thread(ws: Workspace) -> None:
    process = ws.start("yes", keep_output=100_000)
    events = process.follow()
    next(events)
    held: Any = process._twin._session
    eventually(lambda: held._history._shut)
    box = [events]
    del events

    async def collect() -> None:
        box.clear()  # as the garbage collector might

    loop_thread.call(collect())
    eventually(lambda: not held._history.paced)


def test_at_is_an_address(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at= takes a str"):
        Workspace(tmp_path, at=5)  # type: ignore[arg-type]
