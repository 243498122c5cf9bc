"""``handrail run`` and ``handrail sandbox`` as they are used at a terminal."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.user import HANDRAIL, Terminal

WAYS = {
    "run": ("run", "--"),
    "open": ("run", "--sandbox", "off", "--"),
    "sandbox": ("sandbox", "--"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> list[str]:
    return [*HANDRAIL, *WAYS[request.param]]


@pytest.fixture
def shell(way: list[str], tmp_path: Path) -> Iterator[tuple[Terminal, bytes]]:
    """An interactive shell, and what to type there before a command."""
    with Terminal(
        "bash", "--norc", "--noediting", "-i", env={"PS1": "$ "}, cwd=tmp_path
    ) as terminal:
        terminal.until(b"$ ")
        yield terminal, shlex.join(way).encode() + b" "


def test_the_command_has_a_terminal_of_its_own(way: list[str], tmp_path: Path) -> None:
    script = ": </dev/tty && stty size && read x && echo got $x; exit 6"
    with Terminal(*way, "sh", "-c", script, cwd=tmp_path) as terminal:
        before = terminal.modes()
        terminal.until(b"30 100")
        assert terminal.modes() != before
        terminal.type(b"word\r")
        terminal.until(b"got word")
        assert terminal.end() == 6


def test_keys_that_mean_something(way: list[str], tmp_path: Path) -> None:
    script = "trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.05; done"
    with Terminal(*way, "sh", "-c", script, cwd=tmp_path) as terminal:
        terminal.until(b"up")
        terminal.type(b"\x03")
        terminal.until(b"caught")
        assert terminal.end() == 9


def test_a_window_that_is_pulled(way: list[str], tmp_path: Path) -> None:
    script = "trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.05; done"
    with Terminal(*way, "sh", "-c", script, cwd=tmp_path) as terminal:
        terminal.until(b"up")
        terminal.resize(41, 77)
        terminal.until(b"41 77")
        assert terminal.end() == 0


def test_nothing_is_lost_at_the_end(way: list[str], tmp_path: Path) -> None:
    with Terminal(*way, "seq", "100000", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
        assert terminal.said.split() == [b"%d" % n for n in range(1, 100001)]


def test_a_job_of_a_shell(shell: tuple[Terminal, bytes]) -> None:
    terminal, handrail = shell
    terminal.type(handrail + b"sh -c 'echo u''p; read x; echo got $x; exit 3'\n")
    terminal.until(b"up\r\n")
    terminal.type(b"\x1a")
    terminal.until(b"Stopped")
    terminal.until(b"$ ")
    terminal.type(b"echo sane\n")  # echoed, and its line ended, by a terminal that is as before
    terminal.until(b"echo sane\r\nsane\r\n")
    terminal.type(b"fg\n")
    terminal.until(b"exit 3'\r\n")
    terminal.type(b"word\n")
    terminal.until(b"got word")
    terminal.until(b"$ ")
    terminal.type(b"echo was $?\n")
    terminal.until(b"was 3\r\n")


def test_a_shell_with_jobs_of_its_own(way: list[str], tmp_path: Path) -> None:
    inner = ("bash", "--norc", "--noediting", "-i")
    with Terminal(*way, *inner, env={"PS1": "$ "}, cwd=tmp_path) as terminal:
        terminal.until(b"$ ")
        terminal.type(b"cat\n")
        terminal.until(b"cat\r\n")
        terminal.type(b"seen\n")
        terminal.until(b"seen\r\nseen\r\n")
        terminal.type(b"\x1a")
        terminal.until(b"Stopped")
        terminal.until(b"$ ")
        terminal.type(b"\x1a\x1a fg\n")  # a prompt is not stopped
        terminal.until(b"cat\r\n")
        terminal.type(b"again\n")
        terminal.until(b"again\r\nagain\r\n")
        terminal.type(b"\x03")
        terminal.until(b"$ ")
        terminal.type(b"exit 7\n")
        assert terminal.end() == 7


def test_a_job_in_the_background(shell: tuple[Terminal, bytes]) -> None:
    terminal, handrail = shell
    terminal.type(handrail + b"cat &\n")
    terminal.until(b"[1]")
    terminal.type(b"wait %1; echo cat was $?\n")
    terminal.until(b"cat was 0\r\n")


def test_the_terminal_is_given_back_by_one_that_is_killed(shell: tuple[Terminal, bytes]) -> None:
    terminal, handrail = shell
    terminal.type(handrail + b"sh -c 'echo u''p; exec sleep 600'\n")
    terminal.until(b"up\r\n")
    os.kill(os.tcgetpgrp(terminal.fd), signal.SIGKILL)
    terminal.until(b"Killed")
    terminal.until(b"$ ")
    terminal.type(b"stty -a; echo s''een\n")
    terminal.until(b"seen\r\n")
