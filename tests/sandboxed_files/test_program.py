"""The helper as a program, without a sandbox around it: frames in, frames out, and its end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from handrail.sandboxed_files import frames, program


class Caller:
    """The server's side, one call after the other or many at once."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = frames.FrameReader()
        self.waiting: list[tuple[list[Any], bytes]] = []

    def send(self, number: int, op: str, *arguments: Any, body: bytes = b"") -> None:
        for piece in frames.encode([number, op, list(arguments)], body):
            self.sock.sendall(piece)

    def receive(self) -> tuple[list[Any], bytes]:
        while not self.waiting:
            data = self.sock.recv(65536)
            assert data, "the helper has ended"
            self.waiting += [(frames.decode_head(h), b) for h, b in self.reader.feed(data)]
        return self.waiting.pop(0)

    def call(self, op: str, *arguments: Any, body: bytes = b"") -> tuple[Any, bytes]:
        self.send(1, op, *arguments, body=body)
        answer, content = self.receive()
        assert answer[0] == 1
        return (answer[1] if len(answer) == 2 else tuple(answer[2:4])), content


@contextmanager
def helper() -> Iterator[Caller]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", program.__file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
        yield Caller(ours)
    finally:
        ours.close()
        assert process.wait(30) == 0  # hanging up is its end


def test_operations_and_failures(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with helper() as caller:
        assert caller.call("write", path, True, body=b"abc") == (None, b"")
        assert caller.call("read", path, True) == ([3, 0], b"abc")
        assert caller.call("metadata", path, True)[0][:4] == [False, True, False, 3]
        assert caller.call("read", path + "x", True) == (
            ("No such file or directory (os error 2)", "not_found"),
            b"",
        )
        assert caller.call("nosuch")[0][0] == "the file helper knows no `nosuch`"
        text, kind = caller.call("metadata")[0]
        assert text.startswith("the file helper failed: TypeError")
        assert kind == "other"


def test_a_large_file_comes_in_pieces(tmp_path: Path) -> None:
    content = os.urandom(2_000_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    with helper() as caller:
        (size, number), found = caller.call("read", str(path), True)
        assert size == len(content)
        while piece := caller.call("readOn", number)[1]:
            assert len(found) % 3 == 0
            found += piece
        assert found == content
        assert caller.call("readOn", number) == (None, b"")
        (_, number), _ = caller.call("read", str(path), True)
        assert caller.call("readEnd", number) == (None, b"")
        assert caller.call("readOn", number) == (None, b"")


def test_many_calls_at_once_are_all_answered(tmp_path: Path) -> None:
    with helper() as caller:
        for number in range(100):
            caller.send(number, "metadata", str(tmp_path), True)
        assert {caller.receive()[0][0] for _ in range(100)} == set(range(100))


def test_half_a_file_is_dropped_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("as it was")
    with helper() as caller:
        caller.call("open", ["client", "h"], str(path), "replace", True)
        caller.call("writeBlock", ["client", "h"], 0, body=b"half")
    assert path.read_text() == "as it was"
    assert os.listdir(tmp_path) == ["file"]


def test_nonsense_ends_it() -> None:
    with helper() as caller:
        caller.sock.sendall(b"\xff" * 8)
        assert caller.sock.recv(1) == b""
