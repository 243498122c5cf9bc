from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handrail.unified_exec.prune import PROTECTED, Entry, pick


def entries(*rows: tuple[float, bool, bool]) -> list[Entry]:
    newest = [Entry(900 + n, 1000.0 + n, exited=False) for n in range(PROTECTED)]
    return [Entry(n, *row) for n, row in enumerate(rows)] + newest


def test_the_least_recently_used_goes() -> None:
    assert pick(entries((3, False, False), (1, False, False), (2, False, False))) == 1


def test_one_that_exited_goes_first() -> None:
    assert pick(entries((1, False, False), (3, True, False), (2, True, False))) == 2


def test_the_newest_are_safe() -> None:
    assert pick(entries()) is None
    assert pick([]) is None


def test_one_that_a_call_is_on_is_safe() -> None:
    assert pick(entries((1, False, True), (2, False, False))) == 1


def test_no_live_one_goes_for_an_ended_one_that_is_about_to_make_room() -> None:
    assert pick(entries((1, True, True), (2, False, False))) is None
    assert pick(entries((1, True, True), (2, True, False), (3, False, False))) == 1


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.booleans()), max_size=80))
def test_never_a_protected_or_busy_one(rows: list[tuple[int, bool, bool]]) -> None:
    table = [Entry(n, *row) for n, row in enumerate(rows)]
    chosen = pick(table)
    if chosen is not None:
        entry = table[chosen]
        assert not entry.busy
        assert sum(other.last_used >= entry.last_used for other in table) > PROTECTED
