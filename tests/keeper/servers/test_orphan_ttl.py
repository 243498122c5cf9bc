"""The wait for the next server alone; that of a real keeper is in ``test_life.py``."""

from __future__ import annotations

from handrail.keeper.servers.orphan_ttl import OrphanWait


def test_without_a_server_it_expires_once() -> None:
    wait = OrphanWait(5.0)
    assert not wait.expired(1e9)
    wait.start(100.0)
    wait.start(104.0)
    assert not wait.expired(104.9)
    assert wait.expired(105.0)
    wait.stop()
    assert not wait.expired(1e9)
