"""With ``--json`` a failure is one object on stdout, and the exit code the same as without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handrail.cli import error_output
from handrail.errors import ExecutorSpawnFailed, SandboxUnavailable
from handrail.executor import local
from tests.cli.user import HANDRAIL

NOBODY = "ws://127.0.0.1:1"
PATCH = "*** Begin Patch\n*** Delete File: missing\n*** End Patch"


def handrail(*words: str, cwd: Path, **how: Any) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_STATE_HOME": str(cwd / "xdg"), "XDG_RUNTIME_DIR": str(cwd)}
    options: dict[str, Any] = {"input": "", "capture_output": True, "text": True, "timeout": 50}
    return subprocess.run(
        [*HANDRAIL, *words], check=False, cwd=cwd, **{**options, "env": env, **how}
    )


CASES = {
    "no server": (["run", "--at", NOBODY, "--", "true"], 125, "executorTransportFailed"),
    "no program": (["run", "--env", "A=1", "--", "no-such"], 127, "executorSpawnFailed"),
    "no command": (["run"], 2, "usage"),
    "no number": (["run", "--timeout", "x", "--", "true"], 2, "usage"),
    "no token": (["run", "--at", NOBODY, "--token-file", "no", "--", "true"], 125, "usage"),
    "no directory": (["run", "--cwd", "no", "--", "true"], 125, "files"),
    "no option": (["ps", "--nonsense"], 2, "usage"),
    "no id": (["logs", "../x"], 125, "usage"),
    "no such workspace": (["kill", "01234567"], 125, "usage"),
    "none to attach to": (["attach", "01234567"], 125, "usage"),
    "no key": (["attach", "01234567", "--detach-key", "x"], 2, "usage"),
    "nothing far": (["cp", "a", "b"], 2, "usage"),
    "nobody to copy to": (["cp", "--at", NOBODY, "a", ":b"], 125, "executorTransportFailed"),
    "no sandbox option": (["sandbox", "--nonsense", "true"], 2, "usage"),
    "no sandboxed program": (["sandbox", "--", "no-such"], 127, "notRun"),
    "no profile": (["sandbox", "--profile", "none", "--", "true"], 2, "usage"),
    "no sandbox to watch": (
        ["run", "--watch-denials", "--sandbox", "off", "--", "true"], 2, "usage"
    ),
    "no rules": (["policy", "check", "-r", "no", "ls"], 1, "policy"),
    "no upgrade": (["upgrade", "--state-dir", "no"], 1, "usage"),
    "no patch": (["apply-patch", PATCH], 1, "patch"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_failure(name: str, tmp_path: Path) -> None:
    words, code, kind = CASES[name]
    plain = handrail(*words, cwd=tmp_path)
    assert (plain.returncode, plain.stdout) == (code, "")
    assert "Traceback" not in plain.stderr
    at = 2 if words[0] == "policy" else 1
    told = handrail(*words[:at], "--json", *words[at:], cwd=tmp_path)
    assert (told.returncode, told.stderr) == (code, "")
    (error,) = json.loads(told.stdout).values()
    assert (error["kind"], error["exitCode"]) == (kind, code)
    assert error["message"]
    assert isinstance(error["fields"], dict)


def test_a_sandbox_that_cannot_be_had(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from handrail.sandbox.landlock import ruleset\n"
        "from handrail.sandbox import probe\n"
        "probe.BWRAP_PLACES = ()\n"
        "from handrail.cli.app import program\n"
        "sys.exit(program())\n"
    )
    entries = [
        {"path": {"type": "path", "path": path}, "access": access}
        for path, access in (("/", "read"), (str(tmp_path), "deny"))
    ]
    rights = {"file_system": {"type": "restricted", "entries": entries}, "network": "restricted"}
    denies = json.dumps({"type": "managed", **rights})
    for words in (["run", "--json"], ["sandbox", "--json", "--profile", denies]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words, "--", "true"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (125, ""), done
        error = json.loads(done.stdout)["error"]
        assert "bubblewrap" in error["message"], error


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    from tests.support.servers import server_process

    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state) as server:
        done = handrail("cp", "--json", "--at", server.url, ":/no/such", "x", cwd=tmp_path)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"]) == (1, "notCopied")
    (failed,) = error["fields"]["failed"]
    assert (failed["kind"], failed["path"]) == ("not_found", "/no/such")


def test_a_command_that_fails_is_an_answer(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; exit 3"
    for words in (["run", "--json"], ["sandbox", "--json"]):
        done = handrail(*words, "--", "sh", "-c", script, cwd=tmp_path)
        told = json.loads(done.stdout)
        assert done.returncode == told["exitCode"] == 3
        assert (told["stdout"], told["stderr"]) == ("out\n", "err\n")


def test_a_timeout_is_an_answer(tmp_path: Path) -> None:
    words = ("run", "--json", "--sandbox", "off", "--timeout", "0.1", "--", "sleep", "600")
    done = handrail(*words, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit"]["kind"]) == (124, "timedOut")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    done = handrail("run", "--json", "--sandbox", "off", "--", "true", "\udcff", cwd=tmp_path)
    assert json.loads(done.stdout)["argv"] == ["true", "\udcff"]


@pytest.mark.fault
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("run", signal.SIGINT),
        ("run", signal.SIGTERM),
        ("sandbox", signal.SIGINT),
        ("sandbox", signal.SIGTERM),
        ("sandbox", signal.SIGQUIT),  # as without --json
    ],
)
def test_ctrl_c_is_the_commands_to_answer(command: str, number: int, tmp_path: Path) -> None:
    gate = tmp_path / "up"
    os.mkfifo(gate)
    name = signal.Signals(number).name[3:]
    script = f"trap 'echo caught; exit 9' {name}; echo > up; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*HANDRAIL, command, "--json", "--", "sh", "-c", script],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        gate.read_text()
        running.send_signal(number)
        out, err = running.communicate(timeout=40)
    told = json.loads(out)
    assert (running.returncode, told["exitCode"], told["stdout"], err) == (9, 9, "caught\n", b"")


@pytest.mark.fault
@pytest.mark.parametrize("ending", ["exit 9", "sleep 600"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_start_is_told_is_the_commands_to_answer(
    number: int, ending: str, tmp_path: Path
) -> None:
    """The command sends it as its first step, to the parent of its keeper."""
    name = signal.Signals(number).name[3:]
    trap = f"trap 'echo caught; {ending}' {name}; " if ending == "exit 9" else "setsid sleep 600 & "
    parent = "read -r pid name state parent rest < /proc/$PPID/stat; "
    script = f"{trap}{parent} kill -{name} $parent; while :; do sleep 0.05; done"
    for _ in range(3):  # the one or the other may be faster
        done = handrail("run", "--json", "--sandbox", "off", "--", "sh", "-c", script, cwd=tmp_path)
        told = json.loads(done.stdout)
        how = (9, "caught\n", None) if ending == "exit 9" else (128 + number, "", "SIG" + name)
        assert (told["exitCode"], told["stdout"], told["exit"]["signal"]) == how
        assert (done.returncode, done.stderr) == (how[0], "")


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_there_is_a_command(number: int, tmp_path: Path) -> None:
    ours, theirs = os.pipe()  # stdin that does not end is read before the command is started
    with subprocess.Popen(
        [*HANDRAIL, "run", "--json", "--", "true"], stdin=ours, stdout=subprocess.PIPE, cwd=tmp_path
    ) as running:
        os.write(theirs, b"x" * 100_000)  # more than the pipe holds: it is being read
        running.send_signal(number)
        out, _ = running.communicate(timeout=40)  # which waits for no more of it
    os.close(ours)
    os.close(theirs)
    error = json.loads(out)["error"]
    assert (running.returncode, error["kind"]) == (128 + number, "interrupted")
    assert error["exitCode"] == running.returncode


def test_nothing_is_left_of_one_that_is_killed(tmp_path: Path) -> None:
    gate = tmp_path / "up"
    os.mkfifo(gate)
    with subprocess.Popen(
        [*HANDRAIL, "sandbox", "--json", "--", "sh", "-c", "echo > up; sleep 600"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    ) as running:  # fmt: skip
        gate.read_text()
        running.kill()  # and its child goes with it, as the fixture sees


def test_sandbox_that_nothing_enforces_has_one_name_everywhere() -> None:
    error = local._spawn_failed(SandboxUnavailable("no bubblewrap here"))
    assert isinstance(error, SandboxUnavailable)
    assert isinstance(error, ExecutorSpawnFailed)
    assert error_output.kind(error) == error_output.kind(SandboxUnavailable("x"))
    assert error_output.kind(error) == "sandboxUnavailable"


def test_file_errors_are_not_the_systems() -> None:
    """FilesError is an OSError too, and is reported by its own kind and sentence."""
    from handrail.cli import error_output
    from handrail.errors import FilesError

    error = FilesError("/a: No such file or directory (os error 2)", kind="not_found", path="/a")
    told = json.loads(error_output.as_json(error, 1))["error"]
    assert (told["kind"], told["message"]) == ("files", str(error))
    assert told["fields"] == {"kind": "not_found", "path": "/a"}
    assert error_output.kind(FileNotFoundError(2, "x", "/a")) == "os"
