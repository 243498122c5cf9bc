"""The lease alone."""

from __future__ import annotations

from handrail.keeper.servers.lease import Lease


def test_first_come_holds_it_and_may_ask_again() -> None:
    lease = Lease()
    assert lease.ask(7, 100) is None
    assert lease.ask(7, 100) is None
    assert (lease.holder, lease.pid) == (7, 100)


def test_a_second_one_is_told_who_holds_it() -> None:
    lease = Lease()
    lease.ask(7, 100)
    reason = lease.ask(8, 200)
    assert reason is not None
    assert "process 100" in reason
    assert lease.holder == 7


def test_only_the_holder_can_give_it_back() -> None:
    lease = Lease()
    lease.ask(7, 100)
    assert not lease.release(8)
    assert lease.holder == 7
    assert lease.release(7)
    assert not lease.release(7)
    assert lease.ask(8, 200) is None
