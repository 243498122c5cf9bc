"""Records that a killed server leaves behind, and the log that goes on from them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from handrail.process.output import event_index
from handrail.process.output.event_index import HELD_OPEN, TERMINATED, EventIndex
from handrail.process.output.output_log import Event, OutputLog
from handrail.process.output.spool import INDEX_AT


@pytest.fixture(params=[0, INDEX_AT])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    yield fd, request.param
    os.close(fd)


def test_nothing_there_is_no_index(place: tuple[int, int]) -> None:
    assert EventIndex.find(*place) is None


def test_what_is_written_is_found(place: tuple[int, int]) -> None:
    index = EventIndex(*place)
    index.chunk(1, 0, 0, 10, 10)
    index.chunk(2, 1, 0, 5, 15)
    index.mark(TERMINATED)
    index.mark(HELD_OPEN)
    index.exited(3, 9, 1234)
    index.chunk(4, 0, 10, 7, 22)
    index.closed(5, 17.5)
    found = EventIndex.find(*place)
    assert found is not None
    assert found.chunks() == [Event(1, 0, 0, 10, 10), Event(2, 1, 0, 5, 15), Event(4, 0, 10, 7, 22)]
    assert found.ends == index.ends
    assert found.ends.flags == TERMINATED | HELD_OPEN
    assert (found.ends.exit_seq, found.ends.status, found.ends.closed_seq) == (3, 9, 5)
    # And a server after that one finds what this one adds.
    found.chunk(6, 0, 17, 1, 23)
    again = EventIndex.find(*place)
    assert again is not None
    assert again.chunks()[-1] == Event(6, 0, 17, 1, 23)


def test_the_ring_keeps_the_newest(place: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_index, "_RING", 8)
    index = EventIndex(*place)
    for seq in range(1, 21):
        index.chunk(seq, 0, seq, 1, seq)
    assert [event.seq for event in index.chunks()] == list(range(13, 21))


@pytest.mark.parametrize("seed", range(20))
def test_a_log_goes_on_as_if_nothing_had_happened(seed: int) -> None:
    """The same events into one log, and into one that is restored in between."""
    rng = random.Random(seed)
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    try:
        whole, index = OutputLog(1000, 50), EventIndex(fd, 0)
        ends = {0: 0, 1: 0}
        exit_at = rng.randrange(200)

        def step(log: OutputLog, number: int, stream: int, start: int, size: int) -> None:
            if number == exit_at:
                log.exited()
            log.append(stream, start, size)

        restored: OutputLog | None = None
        split = rng.randrange(1, 200)
        for number in range(200):
            if number == split:
                restored = OutputLog(1000, 50)
                restored.restore(index.chunks(), index.ends.exit_seq or None, None)
            stream, size = rng.randrange(2), rng.randrange(1, 120)
            step(whole, number, stream, ends[stream], size)
            if restored is not None:
                step(restored, number, stream, ends[stream], size)
            elif number == exit_at and whole.exit_seq is not None:
                index.exited(whole.exit_seq, 0, 0)
            index.chunk(whole.next_seq - 1, stream, ends[stream], size, whole.bytes_total)
            ends[stream] += size
        assert restored is not None
        for log in (whole, restored):
            log.closed()
        assert restored.next_seq == whole.next_seq
        assert restored.exit_seq == whole.exit_seq
        for after in (0, 1, 50, 150, 190, 300):
            for most in (None, 0, 300):
                one, other = whole.read(after, most), restored.read(after, most)
                assert one.next_seq == other.next_seq
                assert [(c.seq, c.stream, c.start, c.size) for c in one.chunks] == [
                    (c.seq, c.stream, c.start, c.size) for c in other.chunks
                ]
            assert restored.omitted(after) == whole.omitted(after)
    finally:
        os.close(fd)
