"""How many sandboxes wait, by how often they are used."""

from __future__ import annotations

from handrail.sandbox.warm.demand import KEEP_SECONDS, MOST, Demand


def test_none_for_a_single_command() -> None:
    demand = Demand()
    demand.used(10.0)
    assert demand.wanted(10.0) == 0
    demand.used(10.0 + 2 * KEEP_SECONDS)
    assert demand.wanted(10.1 + 2 * KEEP_SECONDS) == 0


def test_by_the_rate_and_never_more_than_the_most() -> None:
    demand = Demand()
    for use in range(3):
        demand.used(use / 10)
    assert demand.wanted(0.3) == 6
    for use in range(500):
        demand.used(1 + use / 1000)
    assert demand.wanted(1.5) == MOST


def test_a_burst_is_remembered_for_a_while() -> None:
    demand = Demand()
    for use in range(4):
        demand.used(use / 10)
    demand.used(20.0)
    assert demand.wanted(20.0) == 8
    assert demand.wanted(1.0 + KEEP_SECONDS) == 1
    demand.used(2.0 + KEEP_SECONDS)
    assert demand.wanted(2.0 + KEEP_SECONDS) == 2
    assert demand.wanted(3.0 + 2 * KEEP_SECONDS) == 0
    assert demand.over(3.0 + 2 * KEEP_SECONDS)
