"""``handrail serve`` from outside: exit codes, sentences, the one line on stdout."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from handrail.cli.app import main
from handrail.version import __version__
from tests.support.eventually import LIMIT
from tests.support.processes import alive, keeper_pid, keepers
from tests.support.servers import SERVE, server_process


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command that must not get as far as starting anything, and its words."""
    try:
        code = main(["serve", *argv])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    said = capsys.readouterr()
    assert said.out == ""
    return code, said.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--listen", "ws://localhost:0"],
            "invalid websocket --listen URL `ws://localhost:0`; expected `ws://IP:PORT`",
        ),
        (
            ["--listen", "http://127.0.0.1:0"],
            "unsupported --listen URL `http://127.0.0.1:0`; expected `ws://IP:PORT` or `stdio`",
        ),
        (["--listen", "ws://0.0.0.0:0"], "refusing to listen on 0.0.0.0 without authentication"),
        (["--listen", "ws://[::]:0"], "refusing to listen on :: without authentication"),
        (
            ["--listen", "stdio", "--ws-auth", "capability-token", "--ws-token-sha256", "0" * 64],
            "WebSocket auth requires a WebSocket listener, not stdio",
        ),
        (["--ws-token-sha256", "0" * 64], ""),
        (["--ws-auth", "capability-token"], ""),
        (["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", "/nosuch"], "/nosuch"),
    ],
)
def test_what_cannot_be_served_is_said_and_ends_with_1(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = refused(argv, capsys)
    assert code == 1
    assert says in err
    assert err.startswith("handrail: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["--concurrent-requests", "0"],
        ["--concurrent-requests", "-1"],
        ["--concurrent-requests", "x"],
        ["--concurrent-requests", "1.5"],
        ["--concurrent-requests", ""],
        ["--concurrent-requests"],
        ["--exit-on-stdin-close"],
        ["--nosuch"],
        ["--lis", "stdio"],  # no abbreviations
        ["extra"],
        ["--on-stop", "maybe"],
        ["--detach-ttl", "-1"],
        ["--detach-ttl", "nan"],
        ["--detach-ttl", "inf"],
        ["--detach-ttl", "soon"],
        ["--orphan-ttl", "-0.1"],
        ["--log-level", "loud"],
        ["--ws-auth", "none"],
        ["--ws-max-clock-skew-seconds", "-1"],
    ],
)
def test_a_usage_error_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, err = refused(argv, capsys)
    assert code == 2
    assert "error: " in err


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["nosuch"]):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def test_the_version() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "handrail", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    assert said.stdout == f"handrail {__version__}\n"
    assert said.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_on_stdout_and_0_at_the_end(tmp_path: Path, number: int) -> None:
    with server_process(tmp_path / "state") as server:
        assert re.fullmatch(r"ws://127\.0\.0\.1:[1-9][0-9]*", server.url)
        assert server.stop(number) == (0, b"")
        assert server.words() == ""


def test_ipv6_is_announced_in_brackets(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with server_process(tmp_path / "state", listen="ws://[::1]:0") as server:
        assert re.fullmatch(r"ws://\[::1\]:[1-9][0-9]*", server.url)


def test_a_port_in_use_ends_with_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        said = subprocess.run(
            [*SERVE, "--listen", url, "--state-dir", str(tmp_path / "state")],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
    assert said.returncode == 1
    assert said.stdout == ""
    assert "cannot listen on 127.0.0.1" in said.stderr
    assert "in use" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_state_directory_in_use_ends_with_1(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with server_process(state) as server:
        said = subprocess.run(
            [*SERVE, "--state-dir", str(state)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        assert said.returncode == 1
        assert said.stdout == ""
        assert f"the state directory {state} is in use by another server" in said.stderr
        # The first one does not mind.
        assert server.metrics()["handrail_processes_active"] == 0


def test_beyond_loopback_on_ones_own_responsibility(tmp_path: Path) -> None:
    with server_process(
        tmp_path / "state", "--insecure-no-auth", listen="ws://0.0.0.0:0"
    ) as server:
        assert server.url.startswith("ws://0.0.0.0:")
        assert "without authentication" in server.words()


def test_a_closed_stdin_means_nothing_to_a_listener(tmp_path: Path) -> None:
    # server_process gives it the null device; and without any descriptor 0 at all:
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&-', "sh", *SERVE, "--state-dir", str(tmp_path / "state")],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ws://127.0.0.1:")
        assert process.poll() is None
        process.terminate()
        assert process.wait(LIMIT) == 0
        assert process.stdout.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_signal_before_it_listens_ends_the_keeper_too(tmp_path: Path) -> None:
    state = tmp_path / "state"
    process = subprocess.Popen([*SERVE, "--state-dir", str(state)], stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + LIMIT
        while not keepers(process.pid):
            assert time.monotonic() < deadline
        keeper = keeper_pid(process.pid)
        process.terminate()
        assert process.wait(LIMIT) == 0
        assert not alive(keeper)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_keeper_has_no_stream_of_the_server(tmp_path: Path) -> None:
    """Or a parent that reads our stdout to its end would wait for the keeper too."""
    with server_process(tmp_path / "state") as server:
        links = [os.readlink(f"/proc/{server.keeper()}/fd/{n}") for n in (0, 1)]
        assert links == ["/dev/null", "/dev/null"]
        server_end = {os.readlink(f"/proc/{server.pid}/fd/1")}
        for name in os.listdir(f"/proc/{server.keeper()}/fd"):
            assert os.readlink(f"/proc/{server.keeper()}/fd/{name}") not in server_end
