"""Spools, staging pipes and notes, taken up where somebody was killed."""

from __future__ import annotations

import os

import pytest

from handrail.process.output.spool import RING, Spool, Staging
from handrail.process.recovery import start_note
from handrail.process.spec import Limits, OnLag, ProcessSpec


def filled(size: int) -> tuple[Spool, int]:
    """A spool that has taken so many bytes, and the pipe they came from."""
    spool = Spool()
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    left = size
    while left:
        left -= os.write(write, b"x" * min(left, 65_536))
        try:
            while True:
                spool.fill(read)
        except BlockingIOError:
            pass
    os.close(write)
    return spool, read


@pytest.mark.parametrize("size", [0, 1, 100_000, RING - 1, RING, RING + 1, 3 * RING + 17])
def test_a_spool_knows_its_position_again(size: int) -> None:
    spool, read = filled(size)
    again = Spool.attach(os.dup(spool.fd))
    assert again.position == spool.position == size
    for fd in (read, spool.fd, again.fd):
        os.close(fd)


@pytest.mark.parametrize("stepped_back", [False, True])
def test_a_lap_that_was_cut(stepped_back: bool) -> None:
    spool, read = filled(RING - 1)
    # The last byte is spliced, and then it is killed in the middle of the lap.
    os.pwrite(spool.fd, b"y", RING - 1)
    os.lseek(spool.fd, RING, os.SEEK_SET)
    spool._write_head(pending=True)
    if stepped_back:
        os.lseek(spool.fd, 0, os.SEEK_SET)
    again = Spool.attach(os.dup(spool.fd))
    assert again.position == RING
    assert again.read(RING - 1, 1) == b"y"
    third = Spool.attach(os.dup(spool.fd))
    assert third.position == RING
    for fd in (read, spool.fd, again.fd, third.fd):
        os.close(fd)


def test_what_is_no_spool_is_refused() -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.truncate(fd, RING + 4096)
    with pytest.raises(ValueError, match="no spool"):
        Spool.attach(fd)
    os.close(fd)


def test_a_staging_pipe_keeps_what_it_holds() -> None:
    first = Staging()
    os.write(first.write_end, b"on its way")
    again = Staging.attach(os.dup(first.read_end))
    first.close()
    assert again.held == 10
    spool = Spool()
    assert again.drain(spool) == 10
    assert spool.read(0, 10) == b"on its way"
    os.write(again.write_end, b"more")
    assert os.read(again.read_end, 10) == b"more"
    again.close()
    spool.close()


def test_a_note_says_what_was_started_and_no_secret() -> None:
    spec = ProcessSpec(
        argv=(b"sh", b"-c", b"\xff\n"),
        cwd=b"/tmp/\xfe",
        env={b"TOKEN": b"hidden"},
        tty=True,
        name="n\0me",
        on_lag=OnLag.BLOCK,
        timeout=3.5,
        limits=Limits(output=7),
        detach=True,
    )
    data = start_note.encode("session", "key\0", spec, (1.0, 2.0))
    assert b"\0" not in data
    assert b"hidden" not in data
    note = start_note.decode(data)
    assert note is not None
    assert (note.owner, note.key, note.started_at, note.started) == ("session", "key\0", 1.0, 2.0)
    assert note.spec() == spec.without_env()


def test_a_huge_argument_list_is_cut_in_the_note_alone() -> None:
    spec = ProcessSpec(argv=(b"x" * 10_000,) * 300, cwd=b"/", env={})
    data = start_note.encode("s", "k", spec, (1.0, 2.0))
    assert len(data) < 40_000
    assert start_note.decode(data) is not None


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'["only","two"]'])
def test_what_is_no_note(data: bytes) -> None:
    assert start_note.decode(data) is None


def test_a_move() -> None:
    moved = start_note.moved(start_note.move("other", "key", detached=True))
    assert moved is not None
    assert (moved.owner, moved.key, moved.detached) == ("other", "key", True)
    assert start_note.moved(None) is None
