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


def test_without_a_server_it_expires_once() -> None:
    lease = Lease(orphan_ttl=5.0)
    assert not lease.orphans_expired(1e9)
    lease.start_orphan_wait(100.0)
    lease.start_orphan_wait(104.0)
    assert not lease.orphans_expired(104.9)
    assert lease.orphans_expired(105.0)
    lease.stop_orphan_wait()
    assert not lease.orphans_expired(1e9)
