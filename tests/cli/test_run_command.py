"""``handrail run``: streams, exit codes, signals, terminals, and nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from server.process_kit import nothing_left

HANDRAIL = [sys.executable, "-m", "handrail"]
OFF = ["--sandbox", "off"]


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    with nothing_left():
        yield


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


def test_the_sandbox_holds(tmp_path: Path) -> None:
    inside = tmp_path / "repo"
    inside.mkdir()
    script = 'echo a > in; echo b > ../out; echo c > "$TMPDIR/t"; echo "$TMPDIR"'
    done = handrail("run", "--", "sh", "-c", script, cwd=inside)
    assert (inside / "in").read_text() == "a\n"
    assert not (tmp_path / "out").exists()
    assert not os.path.exists(done.stdout.strip())
    done = handrail("run", "--sandbox", "read-only", "--", "touch", "in2", cwd=inside)
    assert done.returncode != 0
    assert not (inside / "in2").exists()


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


def test_usage_errors_exit_with_2() -> None:
    for words in (
        [],
        ["--"],
        ["--sandbox", "open", "--", "true"],
        ["--timeout", "x", "--", "true"],
    ):
        assert handrail("run", *words).returncode == 2, words


@pytest.mark.parametrize("sandbox", ["off", "workspace-write"])
def test_a_terminal_when_there_is_one(sandbox: str) -> None:
    script = "tty -s && echo yes; stty size; read x; echo got $x; exit 6"
    with Terminal("run", "--sandbox", sandbox, "--", "sh", "-c", script) as terminal:
        terminal.until(b"30 100")
        assert b"yes" in terminal.said
        terminal.type(b"word\r")
        terminal.until(b"got word")
        assert terminal.end() == 6


class Terminal:
    """A user at a terminal of 30 x 100 who started handrail there."""

    def __init__(self, *words: str, env: dict[str, str] | None = None) -> None:
        self.said = b""
        self._code: int | None = None
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                import fcntl
                import struct
                import termios

                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
                os.execve(sys.executable, [*HANDRAIL, *words], {**os.environ, **(env or {})})
            finally:
                os._exit(99)

    def until(self, wanted: bytes) -> None:
        import select

        deadline = time.monotonic() + 40
        while wanted not in self.said:
            assert select.select([self._fd], [], [], deadline - time.monotonic())[0], self.said
            try:
                piece = os.read(self._fd, 4096)
            except OSError:
                piece = b""
            assert piece, self.said
            self.said += piece

    def type(self, data: bytes) -> None:
        os.write(self._fd, data)

    def end(self) -> int:
        """The exit code; what is still said is read, or it might wait to say it."""
        while True:
            try:
                if not (piece := os.read(self._fd, 4096)):
                    break
            except OSError:
                break
            self.said += piece
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
