"""``handrail run --network``: lists of hosts, and questions at its terminal."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.user import HANDRAIL, Terminal
from tests.network.origin import fetch, origin
from tests.support.eventually import eventually
from tests.support.servers import server_process


@pytest.fixture
def port() -> Iterator[int]:
    with origin() as port:
        yield port


@pytest.fixture(autouse=True)
def _own_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def handrail_run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANDRAIL, "run", *words],
        check=False,
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # no terminal to ask at
        timeout=60,
    )


def test_lists_of_hosts(ws: Path, port: int) -> None:
    options = ("--network", "managed", "--allow-host", f"127.0.0.1:{port}")
    words = fetch(f"http://127.0.0.1:{port}/", "http://no.example/")
    done = handrail_run(ws, *options, "--", *words)
    assert done.stdout.split() == ["ORIGIN", "403"]
    assert 'handrail: Network access to "no.example:80" was blocked' in done.stderr
    told: dict[str, Any] = json.loads(handrail_run(ws, "--json", *options, "--", *words).stdout)
    (denial,) = told["denials"]
    assert (denial["host"], denial["port"], denial["reason"]) == ("no.example", 80, "not_allowed")
    assert len(told["notes"]) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--allow-host", "x"], "--network managed"),
        (["--network", "managed", "--allow-host", "http://x"], "http://x"),
        (["--network", "managed", "--allow-preset", "none"], "there is no preset"),
        (["--network", "managed", "--sandbox", "off"], "without a sandbox"),
        (["--network", "manged"], "did you mean `managed`?"),
        (["--network", "none"], "invalid choice: 'none' (choose from"),
        (["--label", "a=b", "--network", "none"], "--network alone needs a -- before the command"),
    ],
)
def test_what_makes_no_sense(ws: Path, words: list[str], text: str) -> None:
    done = handrail_run(ws, *words, "--", "true")
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.parametrize("command", ["run", "sandbox"])
def test_a_command_right_behind_network_is_the_command(ws: Path, command: str) -> None:
    """Without --, and with one of its own."""
    words = [*HANDRAIL, command, "--network", "echo", "a", "--", "b"]
    done = subprocess.run(words, check=False, cwd=ws, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "a -- b\n")


def test_a_question_at_the_terminal(ws: Path, tmp_path: Path) -> None:
    """Keys are the answer while it is open, and the command's before and after."""
    script = 'read a; "$@"; read b; echo got $a $b'
    words = ["sh", "-c", script, "sh", *fetch("http://ask.example/", "http://ask.example/")]
    with Terminal(*HANDRAIL, "run", "--network", "managed", "--", *words, cwd=ws) as terminal:
        terminal.type(b"one\r")
        terminal.until(b"connects to http://ask.example:80 (GET)")
        terminal.until(b"[y] yes, for this command")
        terminal.until(b"> ")
        terminal.type(b"?")
        terminal.until(b"? ")
        terminal.type(b"n")
        terminal.until(b"403")
        terminal.until(b"403")
        terminal.type(b"two\r")
        terminal.until(b"got one two")
        terminal.until(b"was blocked: not approved.")
        assert terminal.end() == 0
    with Terminal(*HANDRAIL, "run", "--network", "managed", "--", *words[4:], cwd=ws) as terminal:
        terminal.until(b"> ")
        terminal.type(b"x")
        terminal.until(b"Denied network rule saved")
        terminal.end()
    file = tmp_path / "config" / "handrail" / "rules" / "default.rules"
    assert 'network_rule(host="ask.example"' in file.read_text()
    done = handrail_run(ws, "--network", "managed", "--allow-host", "ask.example", "--", *words[4:])
    assert done.stdout.split() == ["403", "403"]


def test_output_waits_for_the_answer(ws: Path) -> None:
    """A command cannot wipe a question out, and one that stderr would swallow is shown."""
    script = '"$@" & until [ -e go ]; do sleep 0.05; done; echo WRITTEN; : > written; wait'
    words = ["--", "sh", "-c", script, "sh", *fetch("http://ask.example/")]
    outer = ["sh", "-c", 'exec "$@" 2>errors', "sh", *HANDRAIL, "run", "--network", "managed"]
    with Terminal(*outer, *words, cwd=ws) as terminal:
        terminal.until(b"\x1b[0m")  # whatever the command has left the terminal in
        terminal.until(b"> ")
        (ws / "go").touch()
        eventually((ws / "written").exists)
        terminal.type(b"n")
        terminal.until(b"\r\n")  # the end of the question's line
        terminal.until(b"WRITTEN")
        terminal.until(b"403")
        assert terminal.end() == 0


@pytest.mark.parametrize("at", ["near", "far"])
def test_a_port_of_the_command_is_exposed(ws: Path, tmp_path: Path, at: str) -> None:
    with contextlib.ExitStack() as stack:
        words: list[str] = []
        if at == "far":
            state = tmp_path / "state"
            state.mkdir(mode=0o700)
            words = ["--at", stack.enter_context(server_process(state)).url]
        _exposes(ws, words)


def _exposes(ws: Path, words: list[str]) -> None:
    script = """
import socket
listener = socket.create_server(("127.0.0.1", 8123))
print("ready", flush=True)
conn, _ = listener.accept()
conn.sendall(b"from inside")
"""
    process = subprocess.Popen(
        [*HANDRAIL, "run", *words, "--expose", "8123", "--", sys.executable, "-I", "-c", script],
        cwd=ws,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.endswith(" leads to port 8123 of the command\n")
        assert process.stdout.readline() == "ready\n"
        port = int(said.split()[1].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 30) as conn:
            assert conn.recv(99) == b"from inside"
        assert process.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--expose", "http"], "PORT or PORT:LOCAL"),
        (["--expose", "80:"], "PORT or PORT:LOCAL"),
        (["--expose", "80:65536"], "from 1 to 65535"),
        (["--expose", "80", "--detach"], "leave out --detach"),
    ],
)
def test_what_cannot_be_exposed(ws: Path, words: list[str], text: str) -> None:
    done = handrail_run(ws, *words, "--", "true")
    assert done.returncode == 2
    assert text in done.stderr


def test_the_sandbox_command_takes_the_same_lists(ws: Path, port: int) -> None:
    words = fetch(f"http://127.0.0.1:{port}/", "http://no.example/")
    options = ["--network", "managed", "--unlisted=deny", "--allow-host", f"127.0.0.1:{port}"]
    done = _sandbox(ws, *options, "--", *words)
    assert (done.returncode, done.stdout.split()) == (0, ["ORIGIN", "403"])
    assert 'Network access to "no.example:80" was blocked' in done.stderr
    held = _sandbox(ws, "--profile", "read-only", *options, "--", "sh", "-c", "touch x; exit 7")
    assert held.returncode == 7
    assert not (ws / "x").exists()
    told: dict[str, Any] = json.loads(_sandbox(ws, "--json", *options, "--", *words).stdout)
    assert told["stdout"].split() == ["ORIGIN", "403"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--allow-host", "x"], "--network managed"),
        (["--network=some"], "off, open or managed"),
        (["--network", "some"], "off, open or managed, or nothing (open), not some"),
        (["--network", "managed", "--profile", "off"], "needs a sandbox"),
        (["--network", "managed", "--unlisted", "maybe"], "maybe"),
    ],
)
def test_what_makes_no_sense_to_the_sandbox_command(ws: Path, words: list[str], text: str) -> None:
    done = _sandbox(ws, *words, "--", "true")
    assert done.returncode in (2, 125)
    assert text in done.stderr


def _sandbox(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HANDRAIL, "sandbox", *words],
        check=False,
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        timeout=60,
    )


def test_an_interactive_shell_tells_hosts_behind_the_command(ws: Path) -> None:
    (ws / "f.py").write_text(fetch()[3])
    options = ("--network", "managed", "--unlisted", "deny", "--shell", "sh")
    with Terminal(*HANDRAIL, "shell", *options, cwd=ws) as terminal:
        terminal.until(b"leaves it")
        terminal.type(f"{sys.executable} -I f.py http://no.example/; echo o''n\r".encode())
        terminal.until(b"on\r\n")
        terminal.until(b'handrail: Network access to "no.example:80" was blocked')
        terminal.type(b"echo a''lone; exit\r")
        terminal.until(b"alone\r\n")
        assert terminal.end() == 0
        assert b"no.example:80" not in terminal.said  # once
