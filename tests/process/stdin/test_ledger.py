"""Write ids, remembered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.process.stdin.ledger import REMEMBERED, StdinLedger


def test_an_id_is_known_once_it_was_accepted() -> None:
    ledger = StdinLedger()
    assert not ledger.known("1")
    assert not ledger.conflicts("1", b"a")
    ledger.accept("1", b"a")
    assert ledger.known("1")
    assert not ledger.known("2")


def test_the_same_id_with_other_bytes_is_a_conflict() -> None:
    ledger = StdinLedger()
    ledger.accept("1", b"a")
    assert not ledger.conflicts("1", b"a")
    assert ledger.conflicts("1", b"b")
    assert not ledger.conflicts("2", b"b")


def test_the_oldest_of_4096_are_forgotten() -> None:
    ledger = StdinLedger()
    for number in range(REMEMBERED + 1):
        ledger.accept(str(number), b"")
    assert REMEMBERED == 4096
    assert not ledger.known("0")
    assert all(ledger.known(str(number)) for number in range(1, REMEMBERED + 1))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.lists(st.sampled_from("abcdefghij")))
def test_exactly_the_last_distinct_ids_are_known(limit: int, ids: list[str]) -> None:
    """As a writer uses it: only an id that is not known is accepted."""
    ledger = StdinLedger(limit)
    order: list[str] = []
    for write_id in ids:
        assert ledger.known(write_id) == (write_id in order[-limit:])
        if not ledger.known(write_id):
            ledger.accept(write_id, write_id.encode())
            order.append(write_id)
