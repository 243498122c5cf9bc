"""Events by number: early, late, double and missing ones."""

from __future__ import annotations

import random

import pytest

from handrail.executor.output.reorder import (
    MOST_EVENTS,
    Closed,
    Event,
    EventOrder,
    Exited,
    NotRetained,
    Output,
)
from handrail.protocol.process import ExitShape, ReadResult


def out(number: int) -> Output:
    return Output("stdout", b"%d;" % number)


def read(
    next_seq: int, *, exited: bool = False, closed: bool = False, code: int | None = None
) -> ReadResult:
    return ReadResult(
        chunks=[],
        next_seq=next_seq,
        exited=exited,
        exit_code=code,
        closed=closed,
        failure=None,
        sandbox_denied=False,
        exit=ExitShape(kind="exited", code=code) if exited else None,
    )


def test_any_order_comes_out_in_order() -> None:
    events: list[tuple[int, Event]] = [(n, out(n)) for n in range(1, 60)]
    events[40] = (41, Exited(0, False))
    events.append((60, Closed()))
    for seed in range(50):
        rng = random.Random(seed)
        arriving = events + rng.sample(events, 20)  # some come twice
        rng.shuffle(arriving)
        order = EventOrder()
        got = [ready for seq, event in arriving for ready in order.offer(seq, event)]
        assert got == events
        assert not order.gap


def test_what_waits_is_bounded() -> None:
    order = EventOrder()
    for seq in range(2, MOST_EVENTS + 2):
        assert order.offer(seq, out(seq)) == []
    assert order.gap
    assert not order.overflows
    order.offer(MOST_EVENTS + 2, out(0))
    assert order.overflows
    large = EventOrder()
    large.offer(2, Output("stdout", bytes(1024 * 1024 + 1)))
    assert large.overflows
    assert len(large.offer(1, out(1))) == 2
    assert not large.overflows


def test_a_read_fills_the_gap() -> None:
    order = EventOrder()
    order.offer(1, out(1))
    order.offer(4, out(4))
    got = order.merge(read(5), [(2, out(2)), (3, out(3)), (4, out(4))], 1, 0)
    assert [seq for seq, _ in got] == [2, 3, 4]


@pytest.mark.parametrize("exit_seq", [1, 3, 5])
def test_the_number_that_is_missing_is_the_exit(exit_seq: int) -> None:
    order = EventOrder()
    chunks = [(n, out(n)) for n in range(1, 6) if n != exit_seq]
    got = order.merge(read(7, exited=True, closed=True, code=3), chunks, 0, 0)
    assert [seq for seq, _ in got] == [1, 2, 3, 4, 5, 6]
    event = got[exit_seq - 1][1]
    assert isinstance(event, Exited)
    assert event.code == 3
    assert isinstance(got[-1][1], Closed)
    assert order.exited


def test_an_exit_that_was_known_is_not_told_again() -> None:
    order = EventOrder()
    order.offer(1, out(1))
    order.offer(2, Exited(0, False))
    got = order.merge(read(5, exited=True, closed=True, code=0), [(3, out(3))], 2, 0)
    assert [type(event).__name__ for _, event in got] == ["Output", "Closed"]


def test_an_exit_that_waits_is_not_told_again() -> None:
    order = EventOrder()
    order.offer(3, Exited(0, False))
    chunks = [(1, out(1)), (2, out(2))]
    got = order.merge(read(5, exited=True, closed=True, code=0), chunks, 0, 0)
    assert [type(e).__name__ for _, e in got] == ["Output", "Output", "Exited", "Closed"]


def test_what_was_dropped_is_told() -> None:
    order = EventOrder()
    order.offer(1, out(1))
    got = order.merge(read(12), [(10, out(10)), (11, out(11))], 1, 777)
    assert got[0] == (9, Output("stdout", b"", 777))
    assert [seq for seq, _ in got] == [9, 10, 11]


def test_the_exit_may_be_among_what_was_dropped() -> None:
    order = EventOrder()
    got = order.merge(read(12, exited=True, code=0), [(10, out(10)), (11, out(11))], 0, 777)
    assert [type(e).__name__ for _, e in got] == ["Output", "Exited", "Output", "Output"]
    assert order.last == 11


def test_what_is_missing_without_a_word_is_an_error() -> None:
    text = "process events are no longer retained while recovering through sequence 11"
    order = EventOrder()
    with pytest.raises(NotRetained, match=text):
        order.merge(read(12), [(10, out(10)), (11, out(11))], 0, 0)
    order = EventOrder()
    with pytest.raises(NotRetained, match=text):
        order.merge(read(12, exited=True), [(1, out(1)), (11, out(11))], 0, 0)


def test_what_moved_meanwhile_is_asked_for_again() -> None:
    order = EventOrder()
    order.offer(1, out(1))
    order.offer(2, out(2))  # arrived while the read from 1 on was under way
    got = order.merge(read(12), [(10, out(10)), (11, out(11))], 1, 777)
    assert got == []
    assert order.last < 11
    got = order.merge(read(12), [(10, out(10)), (11, out(11))], 2, 700)
    assert got[0] == (9, Output("stdout", b"", 700))
