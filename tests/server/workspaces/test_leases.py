"""Leases and shares: the pure parts."""

from __future__ import annotations

from handrail.server.workspaces.leases import Leases, Owner
from handrail.server.workspaces.share import Amounts, Share

ANNS = Owner("ann", "o")


def test_a_lease_runs_from_the_last_holder_or_the_beginning() -> None:
    leases = Leases()
    assert leases.over(ANNS, 5.0, 10.0) == 15.0, "never held"
    leases.hold(ANNS, "one")
    leases.hold(ANNS, "two")
    assert leases.let_go("one", 20.0) == []
    assert leases.over(ANNS, 5.0, 10.0) is None
    assert leases.let_go("two", 30.0) == [ANNS]
    assert leases.over(ANNS, 5.0, 10.0) == 40.0
    assert leases.over(ANNS, 35.0, 10.0) == 45.0, "made after its owner had gone"
    leases.hold(ANNS, "three")
    assert leases.is_held(ANNS)
    assert leases.saved({ANNS}) == []


def test_the_next_server_goes_on_counting() -> None:
    gone, held = Owner("ann", "gone"), Owner("ann", "held")
    before = Leases()
    before.hold(gone, "line")
    before.hold(held, "other")
    before.let_go("line", 10.0)
    after = Leases()
    after.restore(before.saved({gone, held}), {gone, held}, 50.0)
    assert after.over(gone, 0.0, 100.0) == 110.0
    assert after.over(held, 0.0, 100.0) == 150.0, "it gets time to come back"
    after.forget({held})
    assert after.saved({gone, held}) == [(held, 50.0)]


def test_a_tenant_holds_no_other_tenants_owner_of_that_name() -> None:
    leases = Leases()
    leases.hold(Owner("bob", "o"), "line of bob")
    assert not leases.is_held(ANNS)
    assert leases.over(ANNS, 5.0, 10.0) == 15.0
    # A line without a tenant holds the owners of all of them, and one of both is enough.
    leases.hold(ANNS.everywhere(), "control line")
    leases.hold(ANNS, "line of ann")
    assert leases.is_held(ANNS)
    leases.let_go("control line", 20.0)
    assert leases.saved({ANNS, Owner("bob", "o")}) == [], "both have their own lines"
    leases.let_go("line of ann", 30.0)
    assert leases.over(ANNS, 5.0, 10.0) == 40.0
    assert leases.is_held(Owner("bob", "o"))
    assert leases.saved({ANNS, Owner("bob", "o")}) == [(ANNS, 30.0)]


def test_a_share_is_never_more_than_taken() -> None:
    share = Share(Amounts(1000, 100, 2))
    one = Amounts(600, 60)
    assert share.missing(one) == []
    share.take(one)
    assert share.missing(one) == ["cpus", "memory"]
    assert share.never(one) == []
    assert share.never(Amounts(1001, 101)) == ["cpus", "memory"]
    share.take(Amounts(0, 0))
    assert share.missing(Amounts(0, 0)) == ["workspaces"]
    share.give_back(one)
    assert share.free == Amounts(1000, 100, 1)
    smaller = Share(Amounts(1, 1, 1))
    smaller.take(one)
    assert smaller.free == Amounts(0, 0, 0), "a restart with a smaller share"
