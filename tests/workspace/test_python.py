"""Python sessions: state, results by MIME type, errors, interrupts, restarts, near and far."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import (
    AsyncWorkspace,
    ExecutorSpawnFailed,
    Gap,
    PythonEnded,
    PythonResult,
    PythonSession,
    UsageError,
    Workspace,
)
from handrail.workspace.sessions import python as python_session
from tests.executor.places import Room, run_in
from tests.support.eventually import eventually, eventually_so
from tests.support.servers import server_process

pytest.importorskip("ipykernel")
SHOW = """
from IPython.display import display, HTML, JSON
import base64
class Picture:
    def _repr_png_(self): return b"\\x89PNG"
display(HTML("<b>x</b>")); display(JSON({"a": 1})); Picture()
"""
STUBBORN = "while True:\n  try:\n    import time; time.sleep(100)\n  except BaseException: pass"


@pytest.fixture
def py(ws: Workspace) -> Iterator[PythonSession]:
    # In a pytest ipykernel leaves the output of children alone.
    with ws.python(env={"PYTEST_CURRENT_TEST": None}) as session:
        yield session


def test_a_mistaken_bound_is_explained(py: PythonSession) -> None:
    wrong: Any = "64k"
    with pytest.raises(UsageError, match="max_output must be bytes"):
        py.run("1", max_output=wrong)


def test_results_state_and_errors(py: PythonSession, tmp_path: Path) -> None:
    result = py.run("import os, sys\nx = 20\nprint('out'); print('err', file=sys.stderr)\nx + 1")
    assert (result.stdout, result.stderr, result.text) == ("out\n", "err\n", "21")
    assert result.results == ({"text/plain": "21"},)
    assert result.ok
    assert result.error is None
    assert py.run("x * 2").text == "40"
    assert py.run("os.getcwd()").text == repr(str(tmp_path))
    assert py.run("y = 1").text is None
    failed = py.run("print('before')\n{}['k']")
    assert failed.error is not None
    assert (failed.error.name, failed.error.message) == ("KeyError", "'k'")
    assert "Traceback" in failed.error.traceback
    assert "\x1b" not in failed.error.traceback
    assert failed.stdout == "before\n"
    assert not failed.ok
    wrong = py.run("def (")
    assert wrong.error is not None
    assert wrong.error.name == "SyntaxError"
    assert py.run("await __import__('asyncio').sleep(0, 'top level')").text == "'top level'"


def test_results_by_mime_type(py: PythonSession) -> None:
    shown = py.run(SHOW).results
    assert shown[0]["text/html"] == "<b>x</b>"
    assert shown[1]["application/json"] == {"a": 1}
    assert shown[2]["image/png"] == b"\x89PNG"


def test_what_is_no_picture_and_no_event(py: PythonSession) -> None:
    result = py.run("display({'image/png': 'abc', 'image/jpeg': '\\xe4'}, raw=True)")
    assert result.results == ({"image/png": "abc", "image/jpeg": "\xe4"},)
    deep = "[" * 100_000
    for line in ("[1]", "7", "{}", '{"event": []}', '{"event": "done", "id": []}', deep):
        code = f"import os; f = open(f'/proc/{{os.getppid()}}/fd/1', 'w'); f.write('{line}\\n')"
        assert py.run(f"{code}; f.close()").ok
    assert py.run("1").text == "1"


def test_results_beyond_the_bound(py: PythonSession, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "for size in (10, 5000, 20): display({'text/html': 'x' * size}, raw=True)"
    result = py.run(code, max_output=1000)
    assert [len(shown["text/html"]) for shown in result.results] == [10, 20]
    assert 5000 < result.omitted < 6000
    monkeypatch.setattr(python_session, "_EVENT_BYTES", 1000)
    result = py.run(f"{code}\n1", max_output=None)
    assert [len(shown["text/html"]) for shown in result.results[:-1]] == [10, 20]
    assert 5000 < result.omitted < 6000
    assert result.text == "1"


def test_what_is_written_after_the_end_is_in_the_next_result(
    py: PythonSession, tmp_path: Path
) -> None:
    """It was dropped: it is not of the code that runs when it comes."""
    code = f"""
import os, threading, time
def work():
    while not os.path.exists({str(tmp_path / "go")!r}): time.sleep(0.01)
    print("late", flush=True)
    open({str(tmp_path / "written")!r}, "w").close()
threading.Thread(target=work).start()
"""
    assert py.run(code).stdout == ""
    (tmp_path / "go").touch()
    eventually((tmp_path / "written").exists)
    assert py.run("1").stdout == "late\n"


def test_output_of_children_and_a_lot_of_it(py: PythonSession) -> None:
    assert py.run("__import__('os').system('echo child')").stdout == "child\n"
    result = py.run("print('start'); print('x' * 5_000_000); print('end')", max_output=1000)
    assert len(result.stdout) == 1000
    assert result.stdout.startswith("start\nxx")
    assert result.stdout.endswith("xx\nend\n")
    assert result.omitted == 5_000_011 - 1000
    first = next(iter(py.process))
    assert isinstance(first, Gap)  # the session has read it, and it is not kept for others


#: Lets the threads that read what children write run only when nothing else wants the processor.
SLOW_READERS = """
import os, subprocess, sys, threading
for task in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
for one in threading.enumerate():
    if "watch" in one.name:
        os.sched_setscheduler(one.native_id, os.SCHED_IDLE, os.sched_param(0))
busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
"""


@pytest.mark.fault
def test_output_of_children_that_have_ended_is_in_the_result(py: PythonSession) -> None:
    """It came with the next result when the kernel's thread had not read it in time."""
    py.run(SLOW_READERS)
    for number in range(10):
        word = f"child {number} \N{SNOWMAN}\n"
        command = f"printf %s '{word}'; printf %s '{word}' >&2"
        result = py.run(f"os.system({command!r}); None")
        assert (result.stdout, result.stderr) == (word, word)
    py.run("busy.kill(); busy.wait()")


def test_a_stream_that_code_closes(py: PythonSession) -> None:
    """No thread reads from it again and again."""
    py.run("import os, threading; os.close(1)")
    readers = "len([one for one in threading.enumerate() if '(watch)' in one.name])"
    eventually(lambda: py.run(readers).text == "1")
    assert py.run("print(1)").stdout == "1\n"


def test_stdin_is_refused(py: PythonSession) -> None:
    result = py.run("input('name?')")
    assert result.error is not None
    assert result.error.name == "StdinNotImplementedError"


def test_a_timeout_interrupts_and_keeps_the_state(py: PythonSession) -> None:
    py.run("x = 1")
    result = py.run("import time\nprint('begun', flush=True)\ntime.sleep(100)", timeout=1)
    assert result.timed_out
    assert not result.restarted
    assert result.error is not None
    assert result.error.name == "KeyboardInterrupt"
    assert py.run("x").text == "1"


def test_code_that_cannot_be_interrupted_restarts_the_kernel(py: PythonSession) -> None:
    py.run("x = 1")
    result = py.run(STUBBORN, timeout=0.5)
    assert result.timed_out
    assert result.restarted
    failed = py.run("x")
    assert failed.error is not None
    assert failed.error.name == "NameError"


def test_interrupt_and_restart(py: PythonSession, tmp_path: Path) -> None:
    found: list[PythonResult] = []
    py.interrupt()  # nothing runs
    py.run("x = 1")
    code = "import time\nopen('begun', 'w').close()\ntime.sleep(100)"
    thread = threading.Thread(target=lambda: found.append(py.run(code)))
    thread.start()
    deadline = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        thread.join(0.02)
    py.interrupt()
    thread.join(30)
    assert found[0].error is not None
    assert found[0].error.name == "KeyboardInterrupt"
    assert not found[0].timed_out
    assert py.run("x").text == "1"
    py.restart()
    assert py.run("x").error is not None


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "exit()", "quit()"])
def test_a_kernel_that_dies(py: PythonSession, code: str) -> None:
    result = py.run(code)
    assert result.error is not None
    assert result.error.name == "KernelDied"
    assert not py.alive
    with pytest.raises(PythonEnded, match="restart"):
        py.run("1")
    py.restart()
    assert py.run("1").text == "1"


def test_sandboxed(tmp_path: Path) -> None:
    with Workspace(tmp_path) as ws, ws.python() as py:
        assert py.run("open('inside', 'w').write('x')").text == "1"
        refused = py.run("open('/usr/outside', 'w')")
        assert refused.error is not None
        assert refused.error.name == "OSError"
        assert py.run("import time; time.sleep(100)", timeout=0.5).timed_out
        assert py.run("1").text == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


def test_its_directory_is_not_for_sandboxed_commands(tmp_path: Path) -> None:
    ask = "import os; print(os.environ['IPYTHONDIR'])"
    with Workspace(tmp_path) as ws:
        with ws.python(sandbox="off") as py:
            place = Path(py.run(ask).stdout.strip())
            assert place.stat().st_mode & 0o777 == 0o700
            for at in (place, f"$TMPDIR/{place.name}", f"/tmp/{place.name}"):
                assert not ws.run(f"touch {at}/planted").ok
            assert py.run(f"open('{place}/own', 'w').close()").ok
            assert py.run(STUBBORN, timeout=0.1).restarted
            assert not place.exists()
            place = Path(py.run(ask).stdout.strip())
            assert place.exists()
        assert not place.exists()
        left = Path(ws.python(sandbox="off").run(ask).stdout.strip())
    assert not left.exists()


def test_missing_packages_and_interpreters(ws: Workspace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pip install 'handrail\[notebook\]'"):
        ws.python(python=sys.executable, env={"PYTHONPATH": _without_jupyter(tmp_path)})
    with pytest.raises(ExecutorSpawnFailed):
        ws.python(python="/nowhere/python")
    with pytest.raises(ExecutorSpawnFailed, match="is python= an interpreter"):
        ws.python(python="/bin/true")
    with ws.python() as py, pytest.raises(UsageError, match="code= takes a str"):
        py.run(b"1")  # type: ignore[arg-type]


def _without_jupyter(
    base: Path, code: str = "raise ImportError('No module named ipykernel')\n"
) -> str:
    place = base / "none"
    place.mkdir(exist_ok=True)
    (place / "ipykernel.py").write_text(code)
    return str(place)


def test_modules_of_the_workspace_are_for_the_code_alone(ws: Workspace, tmp_path: Path) -> None:
    for name in ("json", "queue", "jupyter_client"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the workspace')\n")
    (tmp_path / "mine.py").write_text("x = 5\n")
    with ws.python() as py:
        assert py.run("import mine; mine.x").text == "5"


SHOW_SECRET = """
import os, sys
from IPython.display import display
value = os.environ["TOKEN"]
print(value[:6], end="", flush=True); print(value[6:])
print(value, file=sys.stderr)
display({"text/html": value, "application/json": {"a": [value], value: 1}}, raw=True)
value
"""


def test_no_text_shows_a_secret(tmp_path: Path) -> None:
    # What JSON escapes is found all the same.
    with Workspace(tmp_path, sandbox="off", secrets={"TOKEN": 'p"\u00e4ss/word'}) as ws:
        mark = "[secret TOKEN]"
        with ws.python() as py:
            result = py.run(SHOW_SECRET)
            assert (result.stdout, result.stderr) == (f"{mark}\n", f"{mark}\n")
            assert result.text == f"'{mark}'"
            shown = {"text/html": mark, "application/json": {"a": [mark], mark: 1}}
            assert result.results == (shown, {"text/plain": f"'{mark}'"})
            error = py.run("raise type(value, (Exception,), {})(value)").error
            assert error is not None
            assert (error.name, error.message) == (mark, mark)
            assert "word" not in error.traceback
        for says in ("raise ImportError", "raise SystemExit"):
            code = f"import os; {says}(os.environ['TOKEN'])\n"
            with pytest.raises((UsageError, ExecutorSpawnFailed)) as info:
                ws.python(env={"PYTHONPATH": _without_jupyter(tmp_path, code)})
            assert mark in str(info.value)
            assert "word" not in str(info.value)


def test_on_another_machine(tmp_path: Path) -> None:
    async def main(room: Room) -> None:
        async with AsyncWorkspace(room.base, sandbox="off", executor=room.executor) as ws:
            async with await ws.python(python=sys.executable) as py:
                await py.run("x = 1")
                assert (await py.run("x + 1")).text == "2"
                assert (await py.run("while True: pass", timeout=0.5)).timed_out
                assert (await py.run("x")).text == "1"

    run_in("websocket", tmp_path, main)


async def test_a_cancelled_call_leaves_a_session_that_works(tmp_path: Path) -> None:
    async with AsyncWorkspace(tmp_path, sandbox="off") as ws, await ws.python() as py:
        await py.run("x = 1")
        task = asyncio.create_task(py.run("open('begun', 'w').close()\nwhile True: pass"))
        await eventually_so((tmp_path / "begun").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await py.run("x")).text == "1"


async def test_going_on_while_code_runs(tmp_path: Path) -> None:
    async with AsyncWorkspace(tmp_path, sandbox="off") as ws, await ws.python() as py:
        os.mkfifo(tmp_path / "gate")
        code = "open('begun', 'w').close(); x = open('gate').read(); x"
        task = asyncio.create_task(py.run(code))
        await eventually_so((tmp_path / "begun").exists)
        async with asyncio.timeout(30):
            again = await ws.python(process=py.process)
        assert not task.done()
        await asyncio.to_thread((tmp_path / "gate").write_text, "through")
        assert (await task).text == "'through'"
        assert (await again.run("x")).text == "'through'"
        await again.close()


def test_another_process_is_no_session_and_is_sent_nothing(ws: Workspace) -> None:
    process = ws.start("cat")
    with pytest.raises(UsageError, match=r"'cat': running> is no Python session"):
        ws.python(process=process)
    process.close_stdin()
    assert process.result().stdout == ""


async def test_a_process_that_does_not_answer_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncWorkspace(tmp_path, sandbox="off") as ws:
        silent = "import time; time.sleep(1000)"
        process = await ws.start([sys.executable, *python_session.driver()[:2], silent])
        attach = asyncio.create_task(ws.python(process=process))
        await asyncio.sleep(0)
        attach.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attach
        monkeypatch.setattr(python_session, "_START_SECONDS", 0.2)
        with pytest.raises(ExecutorSpawnFailed, match="did not answer"):
            await ws.python(process=process)
        await process.signal("USR1")
        ended = await process.wait()
        assert ended is not None
        assert ended.signal == "SIGUSR1"


def test_far_away_an_interpreter_that_has_the_packages_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server runs from a virtual environment, and the first python3 of its PATH lacks them."""
    (tmp_path / "bin").mkdir()
    bare = tmp_path / "bin/python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bare.parent}:{os.environ['PATH']}")
    with (
        server_process(tmp_path, listen=f"unix:{tmp_path}/s") as server,
        Workspace(tmp_path, sandbox="off", at=server.url) as ws,
    ):
        with pytest.raises(UsageError, match="ipykernel"):
            ws.python(python=bare)
        with ws.python() as py:
            assert py.run("6 * 7").text == "42"
            py.restart()
            assert py.run("6 * 7").text == "42"
