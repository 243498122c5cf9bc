"""``handrail run``: streams, exit codes, signals, terminals, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from handrail.cli import options
from handrail.cli.commands import run
from handrail.process.exit_status import ExitInfo, ExitKind
from handrail.sandbox.landlock import ruleset
from handrail.sandbox.profile import AT_ROOT
from handrail.sandbox.temp_dirs import TempDir
from handrail.workspace.result import Result
from tests.cli.user import HANDRAIL
from tests.executor.places import codex_server, why_not
from tests.support.processes import nothing_left
from tests.support.servers import server_process

OFF = ["--sandbox", "off"]
needs_landlock = pytest.mark.skipif(
    ruleset.abi_version() < ruleset.LOWEST_ABI, reason="this kernel has no Landlock to speak of"
)
#: A descendant that never stops to write, and the command's own last words.
TALKS_ON = "(while :; do echo x >&2; sleep 0.05; done) & head -c 300000 /dev/zero; exit 3"


def handrail(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"input": "", "capture_output": True, "text": True, "timeout": 50}
    return subprocess.run([*HANDRAIL, *words], check=False, **{**options, **how})


@pytest.mark.parametrize("sandbox", ["off", "workspace-write", "read-only"])
def test_streams_and_the_exit_code(sandbox: str, tmp_path: Path) -> None:
    script = "cat; echo err >&2; pwd; exit 5"
    done = handrail(
        "run", "--sandbox", sandbox, "--", "sh", "-c", script, input="in\n", cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, f"in\n{tmp_path}\n", "err\n")


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_limits(sandbox: str, tmp_path: Path) -> None:
    limits = ["--limit", "open_files=50", "--limit=file_size=1MiB"]
    script = "ulimit -n; ulimit -f; head -c 2M /dev/zero > big"
    done = handrail("run", "--sandbox", sandbox, *limits, "--", "bash", "-c", script, cwd=tmp_path)
    assert done.stdout.split() == ["50", "1024"]
    assert (done.returncode, (tmp_path / "big").stat().st_size) == (153, 1 << 20)
    done = handrail("run", *OFF, "--limit", "output=100k", "--", "yes", cwd=tmp_path)
    assert done.returncode == 137
    assert done.stderr == "handrail: the command went beyond its limit of output\n"
    told = handrail("run", *OFF, "--json", "--limit", "output=100k", "--", "yes", cwd=tmp_path)
    assert json.loads(told.stdout)["exit"]["kind"] == "limitExceeded"


def test_a_command_that_ends_before_it_is_killed_for_a_limit_did_not_succeed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    exits = {
        ExitInfo(ExitKind.LIMIT_EXCEEDED, 0, limit="output"): 137,
        ExitInfo(ExitKind.LIMIT_EXCEEDED, 152, "SIGXCPU", limit="cpu_seconds"): 152,
        ExitInfo(ExitKind.LIMIT_EXCEEDED, 3, limit="output"): 3,
        ExitInfo(ExitKind.EXITED, 0): 0,
    }
    assert {one: options.told_exit(one) for one in exits} == exits
    assert capsys.readouterr().err.count("went beyond its limit") == 3
    reports = {one: run._report([], Result((), "", "", one, 0.0), None) for one in exits}
    assert {one: report["exitCode"] for one, report in reports.items()} == exits


@pytest.mark.parametrize("bad", ["memory", "memory=", "memory=2X", "colour=3", "memory=0", "=5"])
def test_a_limit_that_is_none_is_wrong_usage(bad: str, tmp_path: Path) -> None:
    done = handrail("run", "--limit", bad, "--", "touch", "made", cwd=tmp_path)
    assert done.returncode == 2
    assert "limit" in done.stderr
    assert not (tmp_path / "made").exists()


def test_denials_are_told_for_certain(tmp_path: Path) -> None:
    inside = tmp_path / "repo"
    inside.mkdir()
    script = "mkdir ../out 2>&-; exit 1"
    words = ["run", "--json", "--watch-denials", "--", "sh", "-c", script]
    told = json.loads(handrail(*words, cwd=inside).stdout)
    outside = str(tmp_path / "out")
    assert told["denials"] == [{"kind": "file", "op": "mkdir", "path": outside, "certain": True}]
    done = handrail("run", "--watch-denials", "--", "true", cwd=inside)
    assert done.returncode == 2
    assert "--json" in done.stderr


@pytest.mark.parametrize("where", [[], OFF, ["--env", "A=1"], [*OFF, "--env", "A=1"]])
def test_a_program_that_cannot_be_run(where: list[str], tmp_path: Path) -> None:
    """The same sentence whichever way it goes."""
    (tmp_path / "plain").touch()
    missing = "cannot start nope: No such file or directory (os error 2)\n"
    refused = "cannot start ./plain: Permission denied (os error 13)\n"
    for program, code, why in (("nope", 127, missing), ("./plain", 126, refused)):
        done = handrail("run", *where, "--", program, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (code, f"handrail: {why}")
        as_sandbox = handrail("sandbox", "--", program, cwd=tmp_path)
        assert (as_sandbox.returncode, as_sandbox.stderr) == (code, f"handrail sandbox: {why}")


@pytest.mark.parametrize("where", [[], ["--env", "A=1"]])
def test_a_program_below_tmp_is_not_shown(
    where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a virtual environment there: bubblewrap alone would say it, with the code 1."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        tool = Path(place, "tool")
        tool.write_text("#!/bin/sh\nexit 3\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        done = handrail("run", *where, "--", "tool", cwd=tmp_path)
        assert done.returncode == 127
        assert "the one of PATH is below /tmp" in done.stderr
        shown = handrail("run", *where, "--writable", place, "--", "tool", cwd=tmp_path)
        assert shown.returncode == 3


def test_the_sandbox_holds(tmp_path: Path) -> None:
    inside = tmp_path / "repo"
    inside.mkdir()
    script = 'echo a > in; echo b > ../out; echo c > "$TMPDIR/t"; dirname "$TMPDIR/t"'
    done = handrail("run", "--", "sh", "-c", script, cwd=inside)
    assert (inside / "in").read_text() == "a\n"
    assert not (tmp_path / "out").exists()
    assert done.stdout == "/tmp\n"
    assert not os.path.exists("/tmp/t")
    done = handrail("run", "--sandbox", "read-only", "--", "touch", "in2", cwd=inside)
    assert done.returncode != 0
    assert not (inside / "in2").exists()


@pytest.mark.parametrize(
    "words", [["run"], ["run", "--env", "A=1"], ["run", "--json"], ["sandbox"]]
)
def test_the_whole_machine_is_no_workspace(words: list[str], tmp_path: Path) -> None:
    done = handrail(*words, "--", "touch", str(tmp_path / "made"), cwd="/")
    assert done.returncode == 125
    assert AT_ROOT in done.stdout + done.stderr
    assert not (tmp_path / "made").exists()
    assert handrail("run", "--sandbox", "read-only", "--", "true", cwd="/").returncode == 0


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_codes_of_a_shell(sandbox: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    run = ("run", "--sandbox", sandbox, "--")
    assert handrail(*run, "no-such-program").returncode == 127
    assert handrail(*run, str(plain)).returncode == 126
    assert handrail(*run, "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_a_timeout_ends_all_of_it(sandbox: str) -> None:
    script = "trap '' TERM; setsid sleep 600 & while :; do sleep 0.1; done"
    done = handrail("run", "--sandbox", sandbox, "--timeout", "0.2", "--", "sh", "-c", script)
    assert done.returncode == 124


def test_what_a_command_leaves_behind_is_ended() -> None:
    # Its streams are elsewhere, or we would wait for it.
    script = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    done = handrail("run", *OFF, "--", "sh", "-c", script)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_a_descendant_that_talks_on_is_not_waited_for(far: bool, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        words = ["--cwd", str(tmp_path), *OFF]
        if far:
            words += ["--at", stack.enter_context(server_process(state)).url]
        done = handrail("run", *words, "--", "sh", "-c", TALKS_ON)
    assert (done.returncode, len(done.stdout)) == (3, 300_000)


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_ctrl_c_is_passed_on(sandbox: str) -> None:
    script = "trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*HANDRAIL, "run", "--sandbox", sandbox, "--", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "caught\n"
        assert running.wait(30) == 9


def test_json(tmp_path: Path) -> None:
    words = ("--json", "--env", "A=1", "--cwd", str(tmp_path), "--", "sh", "-c", "echo $A; exit 2")
    done = handrail("run", *OFF, *words)
    told = json.loads(done.stdout)
    assert done.returncode == 2
    assert (told["stdout"], told["exitCode"], told["exit"]["kind"]) == ("1\n", 2, "exited")


@pytest.mark.parametrize("words", [[], ["--sandbox", "read-only"], ["--env", "A=1"], ["--json"]])
def test_a_directory_that_is_gone(words: list[str], tmp_path: Path) -> None:
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    argv = ["sh", "-c", script, "sh", *HANDRAIL, "run"]

    def there(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*argv, *words], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=50, check=False,
        )  # fmt: skip

    done = there(*words, "--", "true")
    said = json.loads(done.stdout)["error"]["message"] if "--json" in words else done.stderr
    assert done.returncode == 125, done
    assert "the current directory is gone" in said
    assert said.count("\n") == ("--json" not in words)
    assert there("--cwd", str(tmp_path), *words, "--", "true").returncode == 0


def test_usage_errors_exit_with_2() -> None:
    for words in (
        [],
        ["--"],
        ["--sandbox", "open", "--", "true"],
        ["--timeout", "x", "--", "true"],
    ):
        assert handrail("run", *words).returncode == 2, words


WITHOUT_BUBBLEWRAP = (
    "import sys\n"
    "from handrail.sandbox import probe\n"
    "probe.BWRAP_PLACES = ()\n"
    "from handrail.cli.app import program\n"
    "sys.exit(program())\n"
)


@needs_landlock
@pytest.mark.parametrize("words", [("run", "--sandbox"), ("sandbox", "--profile")])
def test_landlock_takes_the_place_of_bubblewrap(words: tuple[str, str], tmp_path: Path) -> None:
    def here(mode: str, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", WITHOUT_BUBBLEWRAP, *words, mode, "--", "sh", "-c", script],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    done = here("read-only", "echo ran; touch x || exit 7")
    assert (done.returncode, done.stdout) == (7, "ran\n"), done
    assert "sandboxed by Landlock instead" in done.stderr
    done = here("workspace-write", "touch x")
    assert done.returncode == 125
    assert "Landlock, which this machine has, cannot hold this profile" in done.stderr
    assert os.listdir(tmp_path) == []


@needs_landlock
def test_landlock_leaves_nothing_of_one_that_is_killed(tmp_path: Path) -> None:
    words = ("run", "--sandbox", "read-only", "--", "sh", "-c")
    script = "echo up; setsid sleep 600 & sleep 600"
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_BUBBLEWRAP, *words, script],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        running.kill()
        assert running.stdout.read() == b""  # every process of the command holds the other end


@pytest.mark.fault
@pytest.mark.parametrize("program", [["-m", "handrail"], ["-c", WITHOUT_BUBBLEWRAP]])
def test_nothing_is_left_by_one_that_is_killed_as_the_command_begins(
    program: list[str], tmp_path: Path
) -> None:
    """By the command, whose first step it is: nothing can be done about it after the start."""
    sandbox = "read-only" if "-c" in program else "off"
    if sandbox != "off" and ruleset.abi_version() < ruleset.LOWEST_ABI:
        pytest.skip("this kernel has no Landlock to speak of")
    script = "setsid sleep 600 & kill -9 $PPID || echo cannot; exec sleep 600"
    argv = [sys.executable, *program, "run", "--sandbox", sandbox, "--", "sh", "-c", script]
    for _ in range(5):  # the one or the other may be faster
        with subprocess.Popen(
            argv,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as running:
            assert running.stdout is not None
            if running.stdout.readline() == b"cannot\n":
                running.kill()  # a sandbox that keeps its signals in
            assert running.wait(30) == -signal.SIGKILL
            assert running.stdout.read() == b""  # every process of the command has the other end


@pytest.mark.fault
@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_nothing_is_left_by_one_that_is_killed(sandbox: str, tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    workspace = tmp_path / "w"
    workspace.mkdir()
    alive, theirs = os.pipe()
    script = 'mkdir -m 0 "$TMPDIR/closed"; echo up; (setsid sleep 600 & sleep 600)'
    with subprocess.Popen(
        [*HANDRAIL, "run", "--sandbox", sandbox, "--", "sh", "-c", script],
        cwd=workspace,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as running:
        os.close(theirs)
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        running.kill()
        assert running.stdout.read() == b""  # everybody inside holds the other end of it
        assert os.read(alive, 1) == b""
    os.close(alive)
    while os.listdir(workspace) or (sandbox != "off" and os.listdir(temporary)):
        select.select([], [], [], 0.01)  # the limit of the test is the limit of this


@pytest.mark.parametrize("sandbox", ["workspace-write", "off"])
def test_nothing_holds_a_descriptor_of_the_caller_after_the_end(
    sandbox: str, tmp_path: Path
) -> None:
    ours, line = os.pipe()
    words = [*HANDRAIL, "run", "--sandbox", sandbox, "--", "true"]
    for _ in range(5):  # the crash guard ends behind the program
        subprocess.run(words, cwd=tmp_path, pass_fds=[line], check=True)
    os.close(line)
    os.set_blocking(ours, False)
    assert os.read(ours, 1) == b""
    os.close(ours)


def test_what_was_left_is_swept_by_the_next(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    dead = tmp_path / "handrail-tmp-0123abcd"
    (dead / "closed").mkdir(parents=True)
    (dead / "closed").chmod(0)
    others = [tmp_path / "handrail-tmp-mine", tmp_path / "handrail-tmp-0123abcd9"]
    for other in others:
        other.mkdir()
    alive = TempDir("feedbeef", place=os.fsencode(tmp_path))
    script = f"while [ -e {dead} ]; do sleep 0.01; done"
    assert handrail("run", "--", "sh", "-c", script, env=env, cwd=tmp_path).returncode == 0
    assert sorted(os.listdir(tmp_path)) == sorted(
        [*(o.name for o in others), "handrail-tmp-feedbeef"]
    )
    alive.remove()


async def test_input_that_cannot_end_is_refused(tmp_path: Path) -> None:
    why = why_not("codex")
    if why is not None:
        pytest.skip(why)

    async with codex_server(tmp_path) as url:
        words = ["run", *OFF, "--cwd", str(tmp_path), "--at", url, "--", "cat"]
        refused = await asyncio.to_thread(handrail, *words, input="hello\n")
        assert refused.returncode == 125
        assert "--tty" in refused.stderr
        null = {"input": None, "stdin": subprocess.DEVNULL}
        assert (await asyncio.to_thread(handrail, *words, **null)).returncode == 0


def test_a_wrapper_that_is_ended_leaves_no_child_behind(tmp_path: Path) -> None:
    """As of a bubblewrap whose child still waits for it; it would hold our streams for ever."""
    script = (
        "import os\n"
        "from handrail.process.foreground.run import Foreground\n"
        "class Wrapper:\n"
        "    argv, env = (b'/bin/sh', b'-c', b'setsid sleep 1000 & wait'), os.environb\n"
        "    passed = ()\n"
        "    def sent(self): pass\n"
        "    def wait(self): pass\n"
        "wrapper = Wrapper()\n"
        "wrapper.running = wrapper\n"
        "foreground = Foreground()\n"
        "foreground.start_sandboxed(wrapper, None)\n"
        "children = f'/proc/{foreground.pid}/task/{foreground.pid}/children'\n"
        "while not open(children).read(): pass\n"
        "foreground.kill()\n"
        "print('over')\n"
    )
    argv = [sys.executable, "-c", script]
    with nothing_left():
        done = subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )
    assert (done.stdout, done.stderr) == ("over\n", "")


def test_no_command_runs_when_there_can_be_no_guard(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "def fork(): raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.fork = fork\n"
        "from handrail.cli import run_fast\n"
        "os._exit(run_fast.run(['--', 'touch', 'made']))\n"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 125
    assert "nothing was run" in done.stderr
    assert list(tmp_path.iterdir()) == []
