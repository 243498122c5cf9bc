"""A stream in the memory of this program."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

import pytest

from handrail.process.output.memory_spool import MemorySpool
from handrail.process.output.output_log import RETENTION_BYTES, RETENTION_CHUNKS
from handrail.process.output.spool import STEP


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            pass  # closed by the test


def test_chunks_are_read_back_by_their_position(pipe: tuple[int, int]) -> None:
    source, drain = pipe
    spool = MemorySpool(terminal=False)
    with pytest.raises(BlockingIOError):
        spool.fill(source)
    os.write(drain, b"one")
    assert spool.fill(source) == 3
    os.write(drain, b"three")
    assert spool.fill(source) == 5
    assert spool.position == 8
    assert (spool.read(0, 3), spool.read(3, 5)) == (b"one", b"three")
    os.close(drain)
    assert spool.fill(source) == 0


def test_what_is_retained_is_bounded(pipe: tuple[int, int]) -> None:
    source, drain = pipe
    spool = MemorySpool(terminal=False)
    for _ in range(2 * RETENTION_BYTES // STEP):
        left = os.write(drain, bytes(STEP))
        while left:
            left -= spool.fill(source)
    assert sum(map(len, spool._chunks.values())) <= RETENTION_BYTES + STEP
    small = MemorySpool(terminal=False)
    for _ in range(RETENTION_CHUNKS + 10):
        os.write(drain, b"x")
        small.fill(source)
    assert len(small._chunks) == len(small._starts) == RETENTION_CHUNKS


def test_a_terminal_is_gathered_and_ends_with_its_last_user() -> None:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    spool = MemorySpool(terminal=True)
    try:
        with pytest.raises(BlockingIOError):
            spool.fill(master)
        os.write(slave, b"a\n")
        os.close(slave)
        slave = -1
        taken = b""
        while size := spool.fill(master):
            taken += spool.read(spool.position - size, size)
        assert taken == b"a\r\n"
    finally:
        os.close(master)
        if slave >= 0:
            os.close(slave)
