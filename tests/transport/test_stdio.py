"""stdio over everything that stdin and stdout may be."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import socket
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.transport.message_limits import HIGH_WATER
from handrail.transport.stdio import open_stdio
from tests.support.coroutines import run
from tests.support.eventually import LIMIT
from tests.transport.transport_kit import Recorder, echo


class Pipes:
    """Two pipes as a parent holds them; the far ends block and are used in threads."""

    def __init__(self) -> None:
        self.stdin, self.feed = os.pipe()
        self.out, self.stdout = os.pipe()
        self._open = {self.stdin, self.feed, self.out, self.stdout}

    def close(self, *fds: int) -> None:
        for fd in fds:
            self._open.remove(fd)
            os.close(fd)

    def close_all(self) -> None:
        self.close(*self._open)

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(LIMIT):
            return await asyncio.to_thread(self._read, count)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (piece := os.read(self.out, count - len(data))):
            data += piece
        return data


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close_all()


def device(name: str) -> io.FileIO:
    return io.FileIO(name, "r+")


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.both_loops
def test_lines_over_pipes(loop: str, pipes: Pipes) -> None:
    async def main() -> None:
        receiver = Recorder(echo)
        line = await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
        assert (line.kind, line.peer) == ("stdio", "stdio")
        os.write(pipes.feed, b'{"a":1}\r\n\n  \n{"b":')
        await receiver.until_messages(1)
        os.write(pipes.feed, b"2}\n")
        assert await pipes.read(16) == b'{"a":1}\n{"b":2}\n'
        assert receiver.messages == ['{"a":1}', '{"b":2}']
        line.close()
        await receiver.until_lost()

    before = open_descriptors()
    run(main(), loop)
    assert open_descriptors() == before
    # Ours were other descriptions: those of the caller are as they were.
    assert os.get_blocking(pipes.stdin)
    assert os.get_blocking(pipes.stdout)


async def test_the_end_of_input_comes_after_the_last_line_and_its_reply(pipes: Pipes) -> None:
    receiver = Recorder(echo)
    await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    os.write(pipes.feed, b"one\nlast")
    pipes.close(pipes.feed)
    assert await receiver.until_lost() == "end of input"
    assert receiver.messages == ["one", "last"]
    assert await pipes.read(9) == b"one\nlast\n"


async def test_the_end_waits_for_a_paused_receiver(pipes: Pipes) -> None:
    receiver = Recorder(lambda self, _: self.transport.pause_reading())
    line = await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    os.write(pipes.feed, b"1\n2\n3")
    pipes.close(pipes.feed)
    for count in (1, 2, 3):
        await receiver.until_messages(count)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(receiver.messages) == count
        assert receiver.why is None
        line.resume_reading()
    assert await receiver.until_lost() == "end of input"


async def test_stdout_presses_back_and_is_flushed_at_the_end(pipes: Pipes) -> None:
    receiver = Recorder()
    line = await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    sent = 0
    while receiver.calls[-1] != "pause_writing":
        line.send(b"x" * 50_000, b"y" * 49_999)
        sent += 1
    assert HIGH_WATER < line.buffered < HIGH_WATER + 100_001
    half = sent // 2
    data = await pipes.read(half * 100_000)
    line.close()
    data += await pipes.read((sent - half) * 100_000)
    assert data == (b"x" * 50_000 + b"y" * 49_999 + b"\n") * sent
    assert (await receiver.until_lost()).startswith("closed by this side")


async def test_writing_goes_on_when_the_reader_does(pipes: Pipes) -> None:
    receiver = Recorder()
    line = await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    line.send(b"x" * 2_000_000)
    assert receiver.calls[-1] == "pause_writing"
    assert len(await pipes.read(2_000_001)) == 2_000_001
    await receiver.until(lambda: receiver.calls[-1] == "resume_writing")
    assert line.buffered == 0
    line.abort()
    assert await receiver.until_lost() == "dropped by this side"


async def test_a_reader_that_went_away_ends_it(pipes: Pipes) -> None:
    receiver = Recorder()
    line = await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    pipes.close(pipes.out)
    line.send(b"into the void")
    assert "Broken pipe" in await receiver.until_lost()


@pytest.mark.parametrize("bad", [b"\xff\n", b"\xc3"])
async def test_invalid_text_ends_it(pipes: Pipes, bad: bytes) -> None:
    receiver = Recorder(echo)
    await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    os.write(pipes.feed, b"good\n" + bad)
    pipes.close(pipes.feed)
    assert await receiver.until_lost() == "the peer broke the protocol: a line is not UTF-8"
    assert receiver.messages == ["good"]
    assert await pipes.read(5) == b"good\n"


async def test_a_long_line(pipes: Pipes) -> None:
    receiver = Recorder()
    await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    text = b"x" * (16 << 20)

    def feed() -> None:
        left = memoryview(text + b"\n")
        while left:
            left = left[os.write(pipes.feed, left) :]

    await asyncio.to_thread(feed)
    await receiver.until_messages(1)
    assert receiver.messages == [text.decode()]
    receiver.transport.abort()
    await receiver.until_lost()


async def test_files(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    lines = [f"line {n} " + "x" * 1000 for n in range(300)]
    source.write_text("skipped\n" + "\n".join(lines))
    target.write_text("kept\n")

    receiver = Recorder(echo)
    with source.open("rb", buffering=0) as stdin, target.open("ab") as stdout:
        stdin.seek(8)
        await open_stdio(receiver, stdin_fd=stdin.fileno(), stdout_fd=stdout.fileno())
        assert await receiver.until_lost() == "end of input"
        assert receiver.messages == lines

    assert target.read_text() == "kept\n" + "".join(f"{line}\n" for line in lines)


async def test_a_file_honours_pausing(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_text("".join(f"{n}\n" for n in range(50)) + "x" * 200_000 + "\nlast\n")

    receiver = Recorder(lambda self, _: self.transport.pause_reading())
    with source.open("rb") as stdin, device(os.devnull) as stdout:
        line = await open_stdio(receiver, stdin_fd=stdin.fileno(), stdout_fd=stdout.fileno())
        for count in range(1, 53):
            await receiver.until_messages(count)
            await asyncio.sleep(0)
            assert len(receiver.messages) == count
            line.resume_reading()
        assert await receiver.until_lost() == "end of input"


@pytest.mark.both_loops
def test_aborting_while_a_file_is_read(loop: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"x" * 1_000_000)

    async def main() -> None:
        receiver = Recorder()
        with source.open("rb") as stdin, device(os.devnull) as stdout:
            line = await open_stdio(receiver, stdin_fd=stdin.fileno(), stdout_fd=stdout.fileno())
            line.abort()
            await receiver.until_lost()
        await asyncio.get_running_loop().shutdown_default_executor()

    before = open_descriptors()
    run(main(), loop)
    assert open_descriptors() == before


async def test_dev_null() -> None:
    receiver = Recorder()
    with device(os.devnull) as null:
        line = await open_stdio(receiver, stdin_fd=null.fileno(), stdout_fd=null.fileno())
        line.send(b"gone")
        assert await receiver.until_lost() == "end of input"


async def test_dev_full_is_a_broken_line(pipes: Pipes) -> None:
    receiver = Recorder()
    with device("/dev/full") as full:
        line = await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=full.fileno())
        line.send(b"no room")
        assert "No space left" in await receiver.until_lost()


async def test_one_socket_for_both() -> None:
    receiver = Recorder(echo)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = ours.fileno()
        await open_stdio(receiver, stdin_fd=fd, stdout_fd=fd)
        theirs.sendall(b"over a socket\n")
        await receiver.until_messages(1)
        assert theirs.recv(100) == b"over a socket\n"
        theirs.shutdown(socket.SHUT_WR)
        assert await receiver.until_lost() == "end of input"
        assert os.get_blocking(fd)


async def test_a_terminal() -> None:
    receiver = Recorder(echo)
    keyboard, terminal = pty.openpty()
    try:
        tty.setraw(terminal)
        line = await open_stdio(receiver, stdin_fd=terminal, stdout_fd=terminal)
        os.write(keyboard, b"typed\n")
        await receiver.until_messages(1)
        assert await asyncio.to_thread(os.read, keyboard, 100) == b"typed\n"
        assert os.get_blocking(terminal)
        line.close()
        await receiver.until_lost()
    finally:
        os.close(terminal)
        os.close(keyboard)


async def test_a_terminal_that_is_hung_up() -> None:
    receiver = Recorder()
    keyboard, terminal = pty.openpty()
    try:
        await open_stdio(receiver, stdin_fd=terminal, stdout_fd=terminal)
    finally:
        os.close(terminal)
        os.close(keyboard)
    assert await receiver.until_lost() == "end of input"


async def test_an_input_that_cannot_be_read_breaks_the_line(tmp_path: Path) -> None:
    with device(os.devnull) as null, socket.socket() as unconnected:
        receiver = Recorder()
        await open_stdio(receiver, stdin_fd=unconnected.fileno(), stdout_fd=null.fileno())
        assert "not connected" in await receiver.until_lost()
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            receiver = Recorder()
            await open_stdio(receiver, stdin_fd=folder, stdout_fd=null.fileno())
            assert "Is a directory" in await receiver.until_lost()
        finally:
            os.close(folder)


async def test_a_pipe_that_cannot_be_reopened_is_shared_and_restored(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise PermissionError("another user's pipe")

    monkeypatch.setattr(os, "open", refuse)

    receiver = Recorder(echo)
    await open_stdio(receiver, stdin_fd=pipes.stdin, stdout_fd=pipes.stdout)
    assert not os.get_blocking(pipes.stdin)
    os.write(pipes.feed, b"x\n")
    assert await pipes.read(2) == b"x\n"
    receiver.transport.close()
    await receiver.until_lost()
    assert os.get_blocking(pipes.stdin)
    assert os.get_blocking(pipes.stdout)


@pytest.mark.both_loops
def test_a_descriptor_that_is_not_open_is_an_error_and_leaks_nothing(
    loop: str, pipes: Pipes
) -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await open_stdio(Recorder(), stdin_fd=pipes.stdin, stdout_fd=9999)

    before = open_descriptors()
    run(main(), loop)
    assert open_descriptors() == before
