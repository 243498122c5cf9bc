"""How many sandboxes wait, by how often they are used."""

from __future__ import annotations

import pytest

from handrail.sandbox.warm.demand import KEEP_SECONDS, KEEP_VISIBLE_SECONDS, MOST, Demand


def test_none_for_a_single_command() -> None:
    demand = Demand(visible=False)
    demand.used(10.0)
    assert demand.wanted(10.0) == 0
    demand.used(10.0 + 2 * KEEP_SECONDS)
    assert demand.wanted(10.1 + 2 * KEEP_SECONDS) == 0


def test_by_the_rate_and_never_more_than_the_most() -> None:
    demand = Demand(visible=False)
    for use in range(3):
        demand.used(use / 10)
    assert demand.wanted(0.3) == 6
    for use in range(500):
        demand.used(1 + use / 1000)
    assert demand.wanted(1.5) == MOST


@pytest.mark.parametrize(("visible", "keep"), [(False, KEEP_SECONDS), (True, KEEP_VISIBLE_SECONDS)])
def test_one_is_left_and_then_none(visible: bool, keep: float) -> None:
    demand = Demand(visible=visible)
    demand.used(0.0)
    demand.used(0.5)
    assert not demand.over(0.5 + keep)
    if not visible:
        assert demand.wanted(0.5 + keep) == 1
    assert demand.over(0.6 + keep)
    assert demand.wanted(0.6 + keep) == 0
