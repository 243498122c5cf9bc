"""``handrail sandbox`` and ``handrail doctor`` as they are typed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HANDRAIL = [sys.executable, "-m", "handrail"]


def run(ws: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*HANDRAIL, "sandbox", *words]
    return subprocess.run(argv, cwd=ws, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("code", [0, 1, 37, 255])
def test_the_exit_code_is_passed_on(ws: Path, code: int) -> None:
    assert run(ws, "--", "/bin/sh", "-c", f"exit {code}").returncode == code


def test_a_command_killed_by_a_signal(ws: Path) -> None:
    assert run(ws, "/bin/sh", "-c", "kill -TERM $$").returncode == 143


def test_profiles(ws: Path) -> None:
    script = "echo x > f; echo x > /opt/handrail-must-not-exist"
    for profile, made in (("workspace-write", True), ("read-only", False)):
        done = run(ws, f"--profile={profile}", "sh", "-c", script)
        assert done.returncode != 0
        assert (ws / "f").exists() is made
        assert not os.path.exists("/opt/handrail-must-not-exist")
        (ws / "f").unlink(missing_ok=True)
    assert list(ws.iterdir()) == []


def test_permissions_as_json_and_from_a_file(ws: Path) -> None:
    (ws / "secret").write_text("TOPSECRET")
    permissions = {
        "type": "managed",
        "file_system": {
            "type": "restricted",
            "entries": [
                {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
                {"path": {"type": "path", "path": str(ws / "secret")}, "access": "deny"},
            ],
        },
        "network": "restricted",
    }
    file = ws / "profile.json"
    file.write_text(json.dumps(permissions))
    for given in (json.dumps(permissions), f"@{file}"):
        done = run(ws, "--profile", given, "cat", "secret")
        assert done.returncode == 1
        assert "TOPSECRET" not in done.stdout
        assert "Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "a command is missing"),
        (("--bogus", "true"), 2, "no option --bogus"),
        (("--profile",), 2, "needs a value"),
        (("--profile", "bogus", "true"), 2, "is no profile"),
        (("--profile", '{"type": "bogus"}', "true"), 2, "cannot be used"),
        (("handrail-no-such-program",), 127, "No such file or directory"),
        (("/etc/passwd",), 126, "Permission denied"),
    ],
)
def test_what_makes_no_sense_is_said(
    ws: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    done = run(ws, *words)
    assert done.returncode == code
    assert says in done.stderr


def test_signals_reach_the_command(ws: Path) -> None:
    script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    argv = [*HANDRAIL, "sandbox", "sh", "-c", script]
    with subprocess.Popen(argv, cwd=ws, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "got\n"
        assert process.wait(20) == 5
    assert list(ws.iterdir()) == []


def test_nobody_and_nothing_is_left_when_it_is_killed(ws: Path) -> None:
    alive, theirs = os.pipe()
    script = "echo ready; (setsid sleep 600 & sleep 600) >&2"
    argv = [*HANDRAIL, "sandbox", "sh", "-c", script]
    process = subprocess.Popen(argv, cwd=ws, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert (ws / ".git").is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        # Everybody inside holds the other end of this pipe.
        assert select.select([alive], [], [], 20)[0]
        assert os.read(alive, 100) == b""
    os.close(alive)
    while os.listdir(ws):  # the limit of the test is the limit of this
        select.select([], [], [], 0.01)


def test_it_stops_and_goes_on_with_us(ws: Path) -> None:
    argv = [*HANDRAIL, "sandbox", "sh", "-c", "while :; do echo x; sleep 0.01; done"]
    with subprocess.Popen(argv, cwd=ws, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"x\n"
        process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.set_blocking(process.stdout.fileno(), False)
        while process.stdout.read():  # what was said before
            pass
        assert not select.select([process.stdout], [], [], 0.3)[0]
        process.send_signal(signal.SIGCONT)
        assert select.select([process.stdout], [], [], 20)[0]
        process.terminate()
        assert process.wait(20) == 143


#: Runs a command in the background, or in the foreground and then on in the background.
_SHELL = """
import fcntl, os, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
with subprocess.Popen(sys.argv[2:], process_group=0) as job:
    if sys.argv[1] == "background":
        print("exit", job.wait(), flush=True)
        sys.exit()
    os.tcsetpgrp(0, job.pid)
    input_seen = os.read(int(sys.argv[1]), 1)
    job.send_signal(signal.SIGTSTP)
    os.waitpid(job.pid, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    job.send_signal(signal.SIGCONT)
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    print("stopped", os.WSTOPSIG(status) == signal.SIGTTIN, flush=True)
    job.terminate()
    job.send_signal(signal.SIGCONT)
    print("exit", job.wait(), flush=True)
"""


def test_a_background_job_does_not_read_the_terminal(ws: Path) -> None:
    ours, theirs = os.openpty()
    os.write(ours, b"secret\n")
    ready, begun = os.pipe()

    def shell(how: str, *words: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", _SHELL, how, *HANDRAIL, "sandbox", *words],
            cwd=ws,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=begun,
            start_new_session=True,
            pass_fds=[ready],
            text=True,
            timeout=30,
            check=True,
        ).stdout

    assert shell("background", "cat") == "exit 0\n"
    script = "echo >&2; exec sleep 60"
    assert shell(str(ready), "sh", "-c", script) == "stopped True\nexit 143\n"
    for fd in (ours, theirs, ready, begun):
        os.close(fd)


def test_doctor_tells_what_holds() -> None:
    argv = [*HANDRAIL, "doctor"]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert said.returncode == 0, said
    assert "Commands can be sandboxed here." in said.stdout
    data = json.loads(subprocess.run([*argv, "--json"], capture_output=True, check=True).stdout)
    assert data["sandbox"] is True
    subjects = {finding["subject"] for finding in data["findings"]}
    wanted = {"bubblewrap", "user namespaces", "AppArmor", "seccomp", "Landlock", "cgroups"}
    assert wanted <= subjects


def test_doctor_whose_reader_has_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = [*HANDRAIL, "doctor", "--json"]
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, timeout=30, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_directory_that_is_gone(ws: Path) -> None:
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    argv = ["sh", "-c", script, "sh", *HANDRAIL, "sandbox"]
    for words, code in (
        (["true"], 125),
        (["--cwd", "x", "true"], 125),
        (["-C", "/usr", "true"], 0),
    ):
        done = subprocess.run(
            [*argv, *words], cwd=ws, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == code, done
        assert done.stderr.count("\n") == (code != 0)
        assert code == 0 or "the current directory is gone" in done.stderr


def test_user_namespaces_that_were_switched_off_meanwhile(ws: Path) -> None:
    assert run(ws, "--profile=read-only", "true").returncode == 0  # and that is remembered
    off = 'echo 0 > /proc/sys/user/max_user_namespaces || exit 77; exec "$@"'
    argv = ["unshare", "-Ur", "sh", "-c", off, "sh", *HANDRAIL]

    def there(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*argv, *words], cwd=ws, capture_output=True, text=True, timeout=30, check=False
        )

    done = there("sandbox", "--profile=read-only", "true")
    if done.returncode == 77:
        pytest.skip("the limit cannot be set here")
    assert "bwrap:" not in done.stderr.replace("(bwrap:", "")
    assert "landlock" in done.stderr.lower()
    said = there("doctor")
    assert said.returncode == 1
    assert "works" not in said.stdout
    assert run(ws, "--profile=read-only", "true").returncode == 0


@pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists("/proc/sys/vm/memfd_noexec"),
    reason="only root may forbid that memory is executed, and only newer kernels know how",
)
def test_it_works_where_memory_may_not_be_executed(ws: Path) -> None:
    script = 'echo 2 > /proc/sys/vm/memfd_noexec && exec "$@"'
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh"]
    argv = [*apart, *HANDRAIL, "sandbox", "--", "echo", "hello"]
    assert run(ws, "true").returncode == 0  # what was found outside is remembered
    done = subprocess.run(argv, cwd=ws, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert run(ws, "true").returncode == 0
