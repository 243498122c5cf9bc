"""The background loop: threads, forks, interrupts, and loops that run already."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from handrail import UsageError, Workspace
from handrail.workspace.synchronous import loop_thread


async def _double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_result_and_an_error_come_back() -> None:
    async def fails() -> None:
        raise ValueError("as it is")

    assert loop_thread.call(_double(21)) == 42
    with pytest.raises(ValueError, match="as it is"):
        loop_thread.call(fails())


def test_many_threads_share_one_loop() -> None:
    async def where() -> int:
        return threading.get_ident()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda n: loop_thread.call(_double(n)), range(200))) == [
            2 * n for n in range(200)
        ]
        assert len({*pool.map(lambda _: loop_thread.call(where()), range(50))}) == 1


def test_it_works_inside_a_running_loop(tmp_path: Path) -> None:
    async def notebook() -> str:
        with Workspace(tmp_path, sandbox="off") as ws:
            return ws.run("echo cell").stdout

    assert asyncio.run(notebook()) == "cell\n"


def test_a_call_from_the_loop_itself_is_refused() -> None:
    async def inside() -> int:
        return loop_thread.call(_double(1))

    with pytest.raises(UsageError, match="wait for itself"):
        loop_thread.call(inside())


def test_an_interrupt_cancels_and_waits_for_the_clean_up() -> None:
    begun = threading.Event()
    steps: list[str] = []

    async def long() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            steps.append("cleaned up")

    def interrupt() -> None:
        begun.wait(10)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        loop_thread.call(long())
    thread.join()
    assert steps == ["cleaned up"]


def test_an_interrupt_just_after_the_end_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = loop_thread._wait
    interrupts = iter([KeyboardInterrupt])

    def wait_and_be_interrupted(lock: threading.Lock) -> None:
        wait(lock)
        for interrupt in interrupts:
            raise interrupt

    async def short() -> None:
        pass

    monkeypatch.setattr(loop_thread, "_wait", wait_and_be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop_thread.call(short())
    loop_thread.call(short())


def test_after_stop_the_next_call_starts_again() -> None:
    before = loop_thread.bridge()
    loop_thread.stop()
    assert loop_thread.call(_double(3)) == 6
    assert loop_thread.bridge() is not before


FORKING = textwrap.dedent("""
    import os, sys, warnings
    from handrail import Workspace, UsageError

    warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
    with Workspace(sys.argv[1], sandbox="off") as ws:
        assert ws.run("echo parent").stdout == "parent\\n"
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    try:
                        ws.run("echo mine")
                    except UsageError as error:
                        assert "fork" in str(error), error
                    with Workspace(sys.argv[1], sandbox="off") as own:
                        assert own.run("echo child").stdout == "child\\n"
                    code = 0
                finally:
                    os._exit(code)
            assert ws.run("echo still").stdout == "still\\n"
            assert os.waitpid(pid, 0)[1] == 0
            assert ws.run("echo again").stdout == "again\\n"
    print("fine")
""")


def test_parent_and_child_both_work_after_a_fork(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


INTERRUPTED = textwrap.dedent("""
    import sys
    from handrail import Workspace

    def told(output):
        print(output.text, end="", flush=True)

    try:
        with Workspace(sys.argv[1], sandbox="off") as ws:
            ws.run("sleep 600 & setsid sleep 600 & echo $$; wait", on_output=told)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
""")


def test_ctrl_c_ends_the_command_with_its_tree(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        leader = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGINT)
        assert program.stdout.readline() == "interrupted\n"
        assert program.wait(30) == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(leader, 0)
