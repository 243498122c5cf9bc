from __future__ import annotations

import pytest

from handrail.unified_exec.wait import CLOSE_WAIT, Collection, Pauses


def step(
    collection: Collection,
    now: float,
    *,
    took: bool = False,
    exited: bool = False,
    closed: bool = False,
) -> float | None:
    return collection.next_wait(now, took=took, exited=exited, closed=closed)


def test_waits_for_the_rest_of_the_time() -> None:
    assert step(Collection(10.0), 4.0) == 6.0
    assert step(Collection(10.0), 10.0) is None


def test_output_is_looked_for_again_until_the_deadline() -> None:
    assert step(Collection(10.0), 4.0, took=True) == 0.0
    assert step(Collection(10.0), 10.0, took=True) is None
    assert step(Collection(10.0), 4.0, took=True, exited=True, closed=True) == 0.0


def test_returns_as_soon_as_exit_and_end_of_output_are_seen() -> None:
    collection = Collection(10.0)
    assert step(collection, 4.0, exited=True, closed=True) is None
    assert not collection.left_open
    assert step(Collection(10.0), 4.0, closed=True) == 6.0


def test_output_that_stays_open_after_the_exit_costs_a_moment_once() -> None:
    collection = Collection(10.0)
    assert step(collection, 4.0, exited=True) == pytest.approx(CLOSE_WAIT)
    assert step(collection, 4.02, exited=True, took=True) == 0.0
    assert step(collection, 4.02, exited=True) == pytest.approx(CLOSE_WAIT - 0.02)
    assert step(collection, 4.06, exited=True) is None
    assert collection.left_open


def test_that_moment_is_not_longer_than_the_call() -> None:
    left = step(Collection(10.0), 9.99, exited=True)
    assert left is not None
    assert left < CLOSE_WAIT


def test_while_somebody_is_asked_nothing_runs_out() -> None:
    pauses = Pauses()
    collection = Collection(10.0, pauses)
    pauses.begin(0.0)
    pauses.end(5.0)
    collection.begin(6.0)
    pauses.begin(9.0)
    pauses.begin(9.5)
    assert step(collection, 12.0) == float("inf")
    pauses.end(13.0)
    assert step(collection, 13.0) == float("inf")
    pauses.end(14.0)
    # Five seconds before the call do not count, five within it do.
    assert step(collection, 14.0) == 1.0
    assert step(collection, 15.0) is None


def test_an_open_question_does_not_hold_up_a_call_that_is_finished() -> None:
    pauses = Pauses()
    collection = Collection(10.0, pauses)
    collection.begin(0.0)
    pauses.begin(1.0)
    assert step(collection, 2.0, took=True, exited=True, closed=True) == 0.0
    assert step(collection, 2.0, exited=True, closed=True) is None
