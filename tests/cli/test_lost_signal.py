"""A signal for a command on another machine whose connection is cut on the way is sent again."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.user import HANDRAIL
from tests.support.eventually import LIMIT
from tests.support.servers import ServerProcess


class HeldLine:
    """A way to a server that passes bytes on until it is told to hold them, and then is cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._holds = threading.Event()
        #: Something was sent that never arrives.
        self.held = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def hold(self) -> None:
        """Pass nothing on to the server any more, on the connections there are."""
        self._holds.set()

    def cut(self) -> None:
        """End all connections; new ones work."""
        self._holds.clear()
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(LIMIT)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            self._pairs.append((client, server))
            for words in ((client, server, True), (server, client, False)):
                self._threads.append(threading.Thread(target=self._pass_on, args=words))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, holds: bool) -> None:
        lost = False
        try:
            while data := source.recv(65536):
                lost = lost or (holds and self._holds.is_set())
                if lost:
                    self.held.set()
                else:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if not holds:
            source.close()
            target.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[HeldLine]:
    server = ServerProcess(tmp_path / "state")
    made = HeldLine(int(server.url.rpartition(":")[2].strip("/")))
    yield made
    made.close()
    server.stop()
    server.close()


def test_an_interrupt_that_was_lost_is_sent_again(line: HeldLine, tmp_path: Path) -> None:
    words = ["--at", f"ws://127.0.0.1:{line.port}", "--cwd", str(tmp_path)]
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print('on', flush=True)"
    argv = [sys.executable, "-c", f"{script}; signal.pause()"]
    with subprocess.Popen(
        [*HANDRAIL, "run", *words, "--", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"on\n"
        line.hold()
        running.send_signal(signal.SIGINT)
        assert line.held.wait(LIMIT)
        line.cut()
        try:
            assert running.wait(LIMIT) == 128 + signal.SIGINT
        finally:
            running.kill()
