"""A keeper is used only if it proves to be ours, and so is a server that comes to it."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from handrail import directory_secret, secret_proof
from handrail.keeper import messages
from handrail.process.keeper_client.start_keeper import KeeperSilent, find_keeper
from handrail.server.recovery.state_dir import StateDir, claim
from tests.support.eventually import LIMIT
from tests.support.processes import ended


@contextmanager
def claimed(path: Path) -> Iterator[StateDir]:
    taken = claim(str(path))
    try:
        yield taken
    finally:
        taken.close()


@contextmanager
def listening(path: Path) -> Iterator[list[messages.Message]]:
    """What listens like a keeper of another version; what it was told."""
    heard: list[messages.Message] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path / "keeper.sock"))
        listener.listen()
        listener.settimeout(LIMIT)

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(LIMIT)
                while (message := messages.receive(sock)) is not None:
                    heard.append(message)
                    if message.op == messages.WHO:
                        messages.send(sock, messages.DONE, message.serial, [b"0"])
                    else:
                        messages.send(sock, messages.REFUSED, message.serial, [b"say hello first"])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield heard
        finally:
            thread.join(LIMIT)


def end(pid: int) -> None:
    os.kill(pid, 15)
    assert ended(pid)
    os.waitpid(pid, 0)


def test_what_does_not_know_the_secret_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with claimed(tmp_path / "state") as taken:
        directory_secret.make_secret(taken.fd)
        with listening(tmp_path / "state") as heard:
            with caplog.at_level(logging.ERROR):
                handle = taken.keeper(600.0)
            assert not handle.found  # another was started
            handle.sock.close()
            end(handle.pid)
        assert [message.op for message in heard] == [messages.PROVE]
        assert "does not prove" in caplog.text


def test_one_of_an_earlier_version_is_known_by_its_process(tmp_path: Path) -> None:
    """Its directory has no secret; then the kernel says that no sandboxed command answers."""
    with claimed(tmp_path / "state") as taken, listening(tmp_path / "state") as heard:
        found = taken.find()
        assert found is not None
        found.sock.close()
    assert {message.op for message in heard} == {messages.WHO}


_INSIDE = """
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
sock, _ = listener.accept()
while data := sock.recv(65536):
    sock.send(b"\\x24\\0\\0\\0\\x01" + b"0")
"""


def test_a_sandboxed_process_is_no_keeper_of_an_earlier_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    words = ["bwrap", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc"]
    with subprocess.Popen(
        [*words, sys.executable, "-c", _INSIDE, str(path)], stdout=subprocess.PIPE
    ) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == b"ready\n"
        with caplog.at_level(logging.ERROR):
            assert find_keeper(str(path)) is None
        assert "is in a sandbox" in caplog.text


def test_a_keeper_that_accepts_no_more_is_silent_and_not_missing(tmp_path: Path) -> None:
    """Each server that stops connects to see whether it listens; a stopped one accepts none."""
    path = str(tmp_path / "s")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                early = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                early.setblocking(False)
                early.connect(path)
        with pytest.raises(KeeperSilent):
            find_keeper(path)
    assert find_keeper(path) is None


def test_a_server_has_to_prove_itself_too(tmp_path: Path) -> None:
    with claimed(tmp_path / "state") as taken:
        handle = taken.keeper(600.0)
        secret = directory_secret.read_secret(taken.fd)
        assert secret == taken.secret != b""
        hello = messages.Hello(messages.VERSION, os.getpid()).pack()
        asked = secret_proof.nonce()
        for first, last in (
            ((messages.HELLO, hello), messages.REFUSED),
            ((messages.WHO, []), messages.REFUSED),
            ((messages.REEXEC, [b"/bin/true", b"x"]), messages.REFUSED),
            ((messages.PROVE, [asked]), messages.PROOF),
        ):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(LIMIT)
                sock.connect(str(tmp_path / "state" / "keeper.sock"))
                messages.send(sock, first[0], 1, first[1])
                answer = messages.receive(sock)
                assert answer is not None
                assert answer.op == last
                if last == messages.PROOF:  # a wrong answer is the end of it
                    messages.send(sock, messages.PROVE, 2, [b"0" * 64])
                    assert messages.receive(sock) is None
        again = find_keeper(str(tmp_path / "state" / "keeper.sock"), secret)
        assert again is not None
        messages.send(again.sock, messages.WHO, 1, [])
        answer = messages.receive(again.sock)
        assert answer is not None
        assert answer.op == messages.DONE
        again.sock.close()
        handle.sock.close()
        end(handle.pid)


@pytest.mark.fault
def test_a_pipe_as_the_log_of_the_keeper_stops_no_start(tmp_path: Path) -> None:
    with claimed(tmp_path / "state") as taken:
        os.mkfifo(tmp_path / "state" / "keeper.log")
        handle = taken.keeper(600.0)
        assert not handle.found
        handle.sock.close()
        end(handle.pid)
