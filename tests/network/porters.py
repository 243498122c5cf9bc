"""A real porter for tests: started as the server starts it, with this process as its server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import handrail.network.porter
from handrail.network import link
from handrail.network.config import ManagedNetwork
from handrail.network.records import Record, Ring
from tests.support.eventually import eventually

PROGRAM = Path(handrail.network.porter.__file__).with_name("__main__.py")
LIMIT = 20.0


class PorterProcess:
    """The porter and the server's end of its link."""

    def __init__(
        self, ring: Ring, environment: dict[str, str], python: str = sys.executable
    ) -> None:
        self.ring = ring
        self.link, theirs = link.pair()
        self.link.settimeout(LIMIT)
        self._serial = 0
        self.heard: list[link.LinkMessage] = []
        with theirs:
            words = [python, "-I", "-S", "-B", str(PROGRAM), str(theirs.fileno()), str(ring.fd)]
            fds = (theirs.fileno(), ring.fd)
            self.process = subprocess.Popen(words, pass_fds=fds, env=environment)

    def call(
        self, op: int, fields: dict[str, Any], fds: list[int] | None = None
    ) -> link.LinkMessage:
        """Ask the porter something; the answer.  Other messages are kept in ``heard``."""
        self._serial += 1
        link.send(self.link, op, fields, self._serial, fds or [])
        while True:
            message = self.receive()
            if message.serial == self._serial and message.op != link.GIVEN:
                return message
            self.heard.append(message)

    def receive(self) -> link.LinkMessage:
        message = link.receive(self.link)
        assert message is not None, "the porter has ended"
        return message

    def until(self, op: int) -> link.LinkMessage:
        """The next message of that operation."""
        for kept in self.heard:
            if kept.op == op:
                self.heard.remove(kept)
                return kept
        while True:
            message = self.receive()
            if message.op == op:
                return message
            self.heard.append(message)

    def add(self, process: str, config: ManagedNetwork, **more: Any) -> tuple[str, int]:
        """Add a process with a listener on loopback; its address."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        fields = {"process": process, "session": "s", "config": config.to_json(), **more}
        with listener:
            fds = [listener.fileno()]
            answer = self.call(link.ADD, {**fields, "fds": [link.LISTENER]}, fds)
            assert answer.op == link.DONE, answer.fields
            address: tuple[str, int] = listener.getsockname()
            return address

    def records(self, count: int) -> list[Record]:
        """At least so many records, once they are written."""
        eventually(lambda: self.ring.count() >= count)
        return [record for _, record in self.ring.read(0)]

    def end(self) -> None:
        """End the porter."""
        self.link.close()
        for message in self.heard:
            message.close()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            raise


@contextmanager
def porter(**environment: str) -> Iterator[PorterProcess]:
    """A porter with an empty ring."""
    ring = Ring.create()
    running = PorterProcess(ring, {"PATH": os.environ["PATH"], **environment})
    try:
        yield running
    finally:
        running.end()
        ring.close()


@contextmanager
def far_side() -> Iterator[tuple[socket.socket, int]]:
    """A listening socket on loopback, and its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        listener.settimeout(LIMIT)
        yield listener, listener.getsockname()[1]


def connect(address: tuple[str, int]) -> socket.socket:
    """A connection to the porter."""
    return socket.create_connection(address, LIMIT)


def read_until(sock: socket.socket, end: bytes) -> bytes:
    """Bytes up to and with ``end``."""
    got = b""
    while not got.endswith(end):
        data = sock.recv(1)
        assert data, f"the connection ended after {got!r}"
        got += data
    return got


def read_all(sock: socket.socket) -> bytes:
    """Bytes up to the end."""
    got = b""
    while data := sock.recv(65536):
        got += data
    return got


def read_response(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """A response with a Content-Length: status, fields, body."""
    head = read_until(sock, b"\r\n\r\n").decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    body = b""
    while len(body) < int(fields.get("content-length", 0)):
        data = sock.recv(65536)
        assert data, "the connection ended in the body"
        body += data
    return int(first.split()[1]), fields, body
