"""Input that was accepted: what is left of it after a crash, and where it goes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from handrail.process.stdin import log as stdin_log
from handrail.process.stdin.ledger import StdinLedger
from handrail.process.stdin.log import NO_ID, REMEMBERED, StdinLog


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield read, write
    finally:
        os.close(read)
        os.close(write)


def digest(number: int) -> bytes:
    return b"%012d" % number


def test_what_was_accepted_and_not_sent_is_sent_by_the_next() -> None:
    log = StdinLog()
    with pipe() as (read, write):
        log.append(b"one", digest(1), 11)
        assert log.send(write) == 3
        log.append(b"two", digest(2), 22)
        log.append(b"", digest(3), 33)
        log.append(b"three")
        next_log, writes = StdinLog.attach(os.dup(log.fd))
        assert writes == [(digest(1), 11), (digest(2), 22), (digest(3), 33)]
        assert (next_log.end, next_log.sent, next_log.closing) == (11, 3, False)
        assert next_log.send(write) == 8
        assert os.read(read, 100) == b"onetwothree"
        next_log.finish()
        last, _ = StdinLog.attach(os.dup(log.fd))
        assert (last.waiting, last.closing) == (0, True)
        for one in (log, next_log, last):
            one.close()


def test_bytes_without_their_record_were_not_accepted() -> None:
    log = StdinLog()
    log.append(b"accepted", digest(1), 1)
    os.pwrite(log.fd, b"half", log.end)  # killed here
    after, writes = StdinLog.attach(os.dup(log.fd))
    assert after.end == 8
    assert len(writes) == 1
    with pipe() as (read, write):
        after.append(b"!", digest(2), 2)
        after.send(write)
        assert os.read(read, 100) == b"accepted!"
    log.close()
    after.close()


def test_as_many_ids_as_a_process_remembers() -> None:
    log, ledger = StdinLog(), StdinLedger()
    ledger.store = log.append
    for number in range(REMEMBERED + 100):
        ledger.accept(f"w{number}", b"")
    again = StdinLedger()
    after, writes = StdinLog.attach(log.fd)
    again.recall(writes)
    assert not again.known("w99")
    assert again.known("w100")
    assert again.known(f"w{REMEMBERED + 99}")
    assert again.conflicts("w200", b"other")
    assert not again.conflicts("w200", b"")
    after.close()


def test_what_a_pipe_still_holds_is_never_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe has references to pages, and the log gives pages back."""
    monkeypatch.setattr(stdin_log, "_PIECE", 64 * 1024)
    rng = random.Random(1)
    log, sent, got = StdinLog(), bytearray(), bytearray()
    with pipe() as (read, write):
        for _ in range(400):
            data = rng.randbytes(rng.choice((1, 100, 5000, 30_000)))
            log.append(data)
            sent += data
            try:
                log.send(write)
            except BlockingIOError:
                pass
            if rng.random() < 0.7:
                try:
                    got += os.read(read, rng.choice((10, 65_536)))
                except BlockingIOError:
                    pass
        while len(got) < len(sent):
            if log.waiting:
                try:
                    log.send(write)
                except BlockingIOError:
                    pass
            try:
                got += os.read(read, 65_536)
            except BlockingIOError:
                pass
    assert got == sent
    assert os.fstat(log.fd).st_blocks * 512 < len(sent)  # and much of it was given back
    log.close()


def test_without_sendfile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sendfile", refused)
    log = StdinLog()
    with pipe() as (read, write):
        log.append(b"by hand", NO_ID, 0)
        assert log.send(write) == 7
        assert os.read(read, 100) == b"by hand"
    assert os.lseek(log.fd, 0, os.SEEK_CUR) == 7
    log.close()
