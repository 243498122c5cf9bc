"""Output that cannot be written: one sentence and a code that does not lie, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.user import HANDRAIL
from tests.support.servers import server_process

#: Each writes something to stdout.
WRITERS = {
    "help": ["--help"],
    "version": ["--version"],
    "help of one": ["run", "--help"],
    "help of sandbox": ["sandbox", "--help"],
    "ps": ["ps"],
    "ps as JSON": ["ps", "--json"],
    "doctor": ["doctor"],
    "completion": ["completion", "zsh"],
    "policy": ["policy", "check", "-r", "empty.rules", "ls"],
    "run as JSON": ["run", "--json", "--sandbox", "off", "--", "echo", "hi"],
    "run that copies": ["run", "--env", "A=1", "--sandbox", "off", "--", "echo", "hi"],
    "sandbox as JSON": ["sandbox", "--json", "--", "echo", "hi"],
}


@pytest.fixture
def full() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def unread() -> Iterator[int]:
    ours, theirs = os.pipe()
    os.close(ours)
    yield theirs
    os.close(theirs)


def handrail(
    words: list[str], cwd: Path, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    (cwd / "empty.rules").touch()
    return subprocess.run(
        [*HANDRAIL, *words],
        cwd=cwd,
        env={**os.environ, "XDG_STATE_HOME": str(cwd / "xdg")},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_told_in_one_sentence(name: str, tmp_path: Path, full: int) -> None:
    done = handrail(WRITERS[name], tmp_path, stdout=full)
    assert done.returncode == 125
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr
    if "--json" in WRITERS[name]:
        assert json.loads(done.stderr)["error"]["kind"] == "outputFailed"


@pytest.mark.parametrize("name", WRITERS)
def test_a_reader_that_has_gone_is_no_error(name: str, tmp_path: Path, unread: int) -> None:
    done = handrail(WRITERS[name], tmp_path, stdout=unread)
    assert (done.returncode, done.stderr) == (0 if name == "doctor" else 141, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "--", "no-such-program"], 127),
        (["run", "--env", "A=1", "--", "no-such-program"], 127),
        (["run", "--at", "ws://127.0.0.1:1", "--", "true"], 125),
        (["sandbox", "--", "no-such-program"], 127),
        (["sandbox", "--nonsense"], 2),
        (["ps", "--nonsense"], 2),
        (["logs", "01234567"], 125),
        (["policy", "check", "-r", "missing", "ls"], 1),
    ],
)
def test_an_error_that_cannot_be_told_is_the_same_error(
    words: list[str], code: int, tmp_path: Path, full: int, unread: int
) -> None:
    for stderr in (full, unread):
        done = handrail(words, tmp_path, stderr=stderr)
        assert (done.returncode, done.stdout) == (code, "")


def test_a_command_meets_the_full_disk_itself(tmp_path: Path, full: int) -> None:
    script = "echo hi || exit 7"
    for words in (["run"], ["run", "--sandbox", "off"], ["sandbox"]):
        done = handrail([*words, "--", "sh", "-c", script], tmp_path, stdout=full)
        assert done.returncode == 7
        assert "handrail" not in done.stderr


def test_the_exit_code_is_in_the_sentence(tmp_path: Path, full: int) -> None:
    for command in ("run", "sandbox"):
        done = handrail([command, "--json", "--", "sh", "-c", "exit 3"], tmp_path, stdout=full)
        assert done.returncode == 125
        assert "the command's exit code was 3" in json.loads(done.stderr)["error"]["message"]


def test_a_record_that_cannot_be_written_is_told_and_the_one_before_is_kept(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state) as server:
        start = ["run", "--at", server.url, "--sandbox", "off", "--detach", "--"]
        name = handrail([*start, "sh", "-c", "read x; exit 3"], tmp_path).stdout.strip()
        full = [
            "sh",
            "-c",
            'ulimit -f 0; exec "$@"',
            "sh",
            *HANDRAIL,
            "wait",
            "--timeout",
            "0",
            name,
        ]
        done = subprocess.run(
            full,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "xdg")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 124
        assert f"workspaces/{name}: the workspace's record cannot be written" in done.stderr
        assert done.stderr.endswith(f"handrail: {name}-1 still runs\n")
        assert handrail(["kill", name], tmp_path).returncode == 0


def test_who_only_looks_leaves_it_running(tmp_path: Path, full: int) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with server_process(state) as server:
        start = ["run", "--at", server.url, "--sandbox", "off", "--detach", "--"]
        name = handrail([*start, "sh", "-c", "echo hi; exec sleep 600"], tmp_path).stdout.strip()
        for words in (["logs", "-f", name], ["attach", name]):
            done = handrail(words, tmp_path, stdout=full)
            assert (done.returncode, done.stderr.count("\n")) == (125, 1), done
        (row,) = json.loads(handrail(["ps", "--json"], tmp_path).stdout)
        assert row["state"] == "running"
        assert handrail(["kill", name], tmp_path).returncode == 0
