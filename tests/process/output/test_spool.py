"""The ring: several laps of counters, read back exactly."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import random
import struct
import tty
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.process.output import spool as spool_module
from handrail.process.output.output_log import RETENTION_BYTES, OutputLog
from handrail.process.output.spool import RING, STEP, Spool, Staging, can_splice

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            pass  # closed by the test


@pytest.fixture
def spool() -> Iterator[Spool]:
    made = Spool()
    yield made
    made.close()


@pytest.fixture(params=["splice", "plain", "short"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that splices, one that refuses to, and one that also writes a little at a time."""
    if request.param != "splice":

        def refuse(*_: object) -> int:
            raise OSError(errno.EINVAL, "refused")

        monkeypatch.setattr(os, "splice", refuse)
    if request.param == "short":
        write: Callable[..., int] = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:1000]))
    return str(request.param)


def test_whether_output_survives_a_kill_is_known(kernel: str) -> None:
    assert can_splice.__wrapped__() is (kernel == "splice")


def _counters(start: int, size: int) -> bytes:
    """Bytes ``start`` to ``start + size`` of an endless stream of counters."""
    first = start // 8
    words = (b"%07d\n" % (n % 10_000_000) for n in range(first, (start + size) // 8 + 1))
    return b"".join(words)[start - first * 8 :][:size]


def _put(fd: int, data: bytes) -> int:
    """Write what fits."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0


def test_several_laps_come_back_exactly(spool: Spool, pipe: Pipe, kernel: str) -> None:
    """Whatever the log still lists is what was written, at every moment of five laps."""
    read, write = pipe
    log = OutputLog()
    written = 0
    rng = random.Random(7)
    total = 3 * RING + 12345 if kernel != "short" else RING + 12345
    looked = 0
    while log.bytes_total < total:
        while put := _put(write, _counters(written, rng.randint(1, 9000))):
            written += put
            if written - log.bytes_total > 40_000:
                break
        start = spool.position
        size = spool.fill(read)
        assert 0 < size <= STEP
        assert start % RING + size <= RING, "a chunk never crosses the ring's end"
        chunk = log.append(0, start, size)
        assert spool.read(chunk.start, chunk.size) == _counters(start, size)
        assert spool.position == start + size == log.bytes_total
        if log.bytes_total - looked > RING // 3:
            looked = log.bytes_total
            listed = log.read(0, None).chunks
            assert listed[-1].start + listed[-1].size == log.bytes_total
            for old in listed:
                assert spool.read(old.start, old.size) == _counters(old.start, old.size)
    if log.bytes_total > RETENTION_BYTES:
        assert log.retained > RETENTION_BYTES - STEP


def test_steps_that_fill_the_retention_to_the_byte_overwrite_nothing(
    spool: Spool, pipe: Pipe
) -> None:
    """The worst case of the ring: full steps, always."""
    read, write = pipe
    log = OutputLog()
    for _ in range(2 * (RING // STEP) + 3):
        assert os.write(write, _counters(log.bytes_total, STEP)) == STEP
        start = spool.position
        log.append(0, start, spool.fill(read))
        oldest = log.read(0, None).chunks[0]
        assert spool.read(oldest.start, oldest.size) == _counters(oldest.start, oldest.size)


def test_two_streams_share_the_retention_and_not_the_ring(pipe: Pipe) -> None:
    read, write = pipe
    log = OutputLog()
    spools = [Spool(), Spool()]
    rng = random.Random(3)
    for _ in range(60):
        stream = rng.randrange(2)
        made = spools[stream]
        start = made.position
        os.write(write, _counters(start, rng.randint(1, STEP)))
        log.append(stream, start, made.fill(read))
        for chunk in log.read(0, None).chunks:
            data = spools[chunk.stream].read(chunk.start, min(chunk.size, 64))
            assert data == _counters(chunk.start, len(data))
    for made in spools:
        made.close()


def test_empty_and_ended(spool: Spool, pipe: Pipe, kernel: str) -> None:
    read, write = pipe
    with pytest.raises(BlockingIOError):
        spool.fill(read)
    os.write(write, b"last")
    os.close(write)
    assert spool.fill(read) == 4
    assert spool.fill(read) == 0
    assert spool.fill(read) == 0
    assert spool.read(0, 4) == b"last"
    assert spool.position == 4


def test_other_errors_are_not_taken_for_a_kernel_that_cannot_splice(spool: Spool) -> None:
    with pytest.raises(OSError, match="Bad file"):
        spool.fill(-1)


def test_close_twice() -> None:
    made = Spool()
    made.close()
    made.close()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 16), st.integers(1, 64), st.lists(st.integers(1, 40), min_size=1, max_size=60)
)
def test_any_ring_and_any_sizes(steps: int, step: int, sizes: list[int]) -> None:
    """The same on small rings, where ends meet often."""
    ring = steps * step + step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "RING", ring)
        patch.setattr(spool_module, "STEP", step)
        log = OutputLog(limit_bytes=steps * step)
        made = Spool()
        read, write = os.pipe2(os.O_NONBLOCK)
        try:
            sent = 0
            for size in sizes:
                sent += os.write(write, _counters(sent, size))
                while log.bytes_total < sent:
                    start = made.position
                    log.append(0, start, made.fill(read))
                for chunk in log.read(0, None).chunks:
                    assert made.read(chunk.start, chunk.size) == _counters(chunk.start, chunk.size)
                # What the next server would find: the laps behind the ring, and the position.
                magic, laps, pending = struct.unpack("<8sQQ", os.pread(made.fd, 24, ring))
                assert (magic, pending) == (b"hrspool1", 0)
                assert laps * ring + os.lseek(made.fd, 0, os.SEEK_CUR) == made.position == sent
        finally:
            made.close()
            os.close(read)
            os.close(write)


# --- terminals -----------------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Iterator[Pipe]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    os.set_blocking(slave, False)
    yield master, slave
    for fd in (master, slave):
        try:
            os.close(fd)
        except OSError:
            pass  # closed by the test


@pytest.fixture
def staging() -> Iterator[Staging]:
    made = Staging()
    yield made
    made.close()


def _drain(staging: Staging, spool: Spool, size: int) -> bytes:
    got = b""
    while len(got) < size:
        start = spool.position
        moved = staging.drain(spool)
        got += spool.read(start, moved)
    assert len(got) == size
    assert staging.held == 0
    return got


@pytest.mark.parametrize("room", [None, 4096])
def test_terminal_to_spool_loses_nothing(
    terminal: Pipe, staging: Staging, spool: Spool, kernel: str, room: int | None
) -> None:
    """Also where a user has so many pipes open that each new one is a page long."""
    master, slave = terminal
    if room is not None:
        fcntl.fcntl(staging.write_end, fcntl.F_SETPIPE_SZ, room)
    sent = got = 0
    total = 200_000 if kernel != "short" else 40_000
    while got < total:
        while put := _put(slave, _counters(sent, 3000)):
            sent += put
        size, ended = staging.fill(master, STEP)
        assert not ended
        assert size <= STEP
        assert _drain(staging, spool, size) == _counters(got, size)
        got += size


def test_terminal_that_nobody_has_open(
    terminal: Pipe, staging: Staging, spool: Spool, kernel: str
) -> None:
    master, slave = terminal
    assert staging.fill(master, STEP) == (0, False)
    os.write(slave, b"last words")
    os.close(slave)
    size, ended = staging.fill(master, STEP)
    assert _drain(staging, spool, size) == b"last words"
    while not ended:
        size, ended = staging.fill(master, STEP)
        assert size == 0
    assert staging.fill(master, STEP) == (0, True)


def test_no_more_than_was_wanted(terminal: Pipe, staging: Staging, kernel: str) -> None:
    master, slave = terminal
    os.write(slave, b"0123456789")
    got = b""
    while len(got) < 10:
        size, ended = staging.fill(master, 3)
        assert not ended
        assert size <= 3
        if size:
            got += os.read(staging.read_end, 100)
            staging.held -= size
    assert got == b"0123456789"


def full(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Have ``os.write`` find room for so many bytes, and none after that."""
    write: Callable[..., int] = os.write
    left = room

    def limited(fd: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "no room")
        written = write(fd, data[:left])
        left -= written
        return written

    monkeypatch.setattr(os, "write", limited)


def test_what_was_read_is_kept_until_there_is_room(
    pipe: Pipe, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "refused")

    monkeypatch.setattr(os, "splice", refuse)
    read, write = pipe
    os.write(write, b"0123456789")
    os.close(write)
    with monkeypatch.context() as patch:
        full(patch, 4)
        for _ in range(2):
            with pytest.raises(OSError, match="no room"):
                spool.fill(read)
            assert spool.position == 4
    assert spool.fill(read) == 6
    assert spool.position == 10
    assert spool.read(0, 10) == b"0123456789"
    assert spool.fill(read) == 0


def test_a_staging_pipe_counts_what_was_stored_of_it(
    terminal: Pipe, staging: Staging, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "refused")

    monkeypatch.setattr(os, "splice", refuse)
    master, slave = terminal
    os.write(slave, b"0123456789")
    assert staging.fill(master, STEP) == (10, False)
    with monkeypatch.context() as patch:
        full(patch, 4)
        with pytest.raises(OSError, match="no room"):
            staging.drain(spool)
    assert staging.held == 6
    assert _drain(staging, spool, 6) == b"456789"


def test_a_terminal_has_not_ended_where_there_is_no_memory(
    terminal: Pipe, staging: Staging, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scarce(*_: object) -> int:
        raise OSError(errno.ENOMEM, "no room")

    master, slave = terminal
    os.write(slave, b"last words")
    with monkeypatch.context() as patch:
        patch.setattr(os, "splice", scarce)
        with pytest.raises(OSError, match="no room"):
            staging.fill(master, STEP)
    assert staging.fill(master, STEP) == (10, False)
    assert _drain(staging, spool, 10) == b"last words"
