"""Log lines are written without waiting: what does not fit is dropped and counted."""

from __future__ import annotations

import errno
import os
import pty
import socket
import termios
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from handrail.telemetry.log_stream import LogStream

pytestmark = pytest.mark.fault

LINE = "x" * 99


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read_all(fd: int) -> bytes:
    os.set_blocking(fd, False)
    found = b""
    try:
        while piece := os.read(fd, 1 << 20):
            found += piece
    except BlockingIOError:
        pass
    return found


def flood(stream: LogStream, lines: int = 5000) -> None:
    for _ in range(lines):
        stream.write(LINE)


def test_a_full_pipe_drops_lines_and_says_how_many(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with closing(LogStream(writer)) as stream:
        flood(stream)
        whole = read_all(reader)
        assert stream.dropped == 5000 - whole.count(b"\n") - bool(stream._rest)
        stream.write("after")
        later = read_all(reader)
    text = (whole + later).decode()
    dropped = 5000 - text.count(LINE + "\n")
    assert text.endswith(f"({dropped} log lines before this one were dropped)\nafter\n")
    assert os.get_blocking(writer), "the descriptor that was given is shared and stays as it is"


def test_a_pipe_that_cannot_be_opened_again_is_polled(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    real = os.open

    def refuse(path: str, flags: int) -> int:
        if path.startswith("/proc/self/fd/"):
            raise PermissionError(13, "no")
        return real(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    with closing(LogStream(writer)) as stream:
        flood(stream)
        assert stream.dropped
        got = read_all(reader)
        stream.write("after")
        assert (got + read_all(reader)).endswith(b"after\n")


def test_a_socket_that_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(LogStream(theirs.fileno())) as stream:
        flood(stream, 50_000)
        assert stream.dropped
        assert theirs.getblocking()


def test_a_stopped_terminal() -> None:
    leader, terminal = pty.openpty()
    try:
        termios.tcflow(terminal, termios.TCOOFF)
        with closing(LogStream(terminal)) as stream:
            flood(stream)
            assert stream.dropped
        assert os.get_blocking(terminal)
    finally:
        os.close(leader)
        os.close(terminal)


def test_a_regular_file_gets_every_line_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    with closing(LogStream(fd)) as stream:
        flood(stream)
    os.close(fd)
    assert path.read_text() == "before\n" + f"{LINE}\n" * 5000


def _closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _closed() -> int:
    fd = _closed_pipe()
    os.close(fd)
    return fd


@pytest.mark.parametrize("make", [_closed_pipe, _closed])
def test_without_a_reader_nothing_is_raised(make: Callable[[], int]) -> None:
    fd = make()
    with closing(LogStream(fd)) as stream:
        flood(stream, 10)
    if make is _closed_pipe:
        os.close(fd)


def test_lines_that_a_full_disk_refuses_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with (tmp_path / "log").open("wb") as file, closing(LogStream(file.fileno())) as stream:
        stream.write("before")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            flood(stream, 7)
        stream.write("after")
    wanted = "before\n(7 log lines before this one were dropped)\nafter\n"
    assert (tmp_path / "log").read_text() == wanted
