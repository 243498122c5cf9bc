"""The ring keeps the last records for any server that comes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from handrail.network.managed import record_decoder
from handrail.network.records import (
    DECISION,
    END,
    SLOTS,
    Record,
    RecordedDecision,
    Ring,
    from_json,
)

ONE = Record(
    kind=DECISION,
    process="1",
    connection=1,
    time=1.5,
    decision="deny",
    source="baseline_policy",
    reason="denied",
    protocol="http",
    op="request",
    host="h.example",
    port=80,
)


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring.create()
    yield made
    made.close()


def test_what_is_written_is_read_by_another_process(ring: Ring) -> None:
    ring.append(ONE)
    ring.append(replace(ONE, host="i.example"))
    other = Ring(os.dup(ring.fd))
    assert [record.host for _, record in other.read(0)] == ["h.example", "i.example"]
    assert other.read(1) == [(2, replace(ONE, host="i.example"))]
    other.taken = 1
    assert ring.taken == 1
    assert other.append(ONE) == 3
    other.close()


def test_the_ring_loses_the_oldest(ring: Ring) -> None:
    for number in range(SLOTS + 10):
        ring.append(replace(ONE, connection=number))
    found = ring.read(0)
    assert len(found) == SLOTS
    assert found[0] == (11, replace(ONE, connection=10))
    assert ring.read(SLOTS + 10) == []


def test_long_texts_are_cut(ring: Ring) -> None:
    ring.append(replace(ONE, reason="\u20ac" * 1024, process="p" * 256, rule="r" * 300))
    (_, found), *_ = ring.read(0)
    assert found.reason.strip("\u20ac") == ""
    assert found.host == ONE.host


def test_records_of_one_decision_share_what_is_known_of_it(ring: Ring) -> None:
    known = replace(ONE, decision="allow", rule='a "rule"', host="h\u20ac", pid=7, comm="curl")
    decision = RecordedDecision(known)
    ring.write(decision.begun(5))
    ring.write(decision.ended(5, 1, 2, 3, 'said "no"', 0.25))
    ring.write(decision.ended(6, 1, 2, 3, "\u20ac" * 500, None))
    for decode in (from_json, record_decoder.decode):
        begun, ended, other = (record for _, record in ring.read(0, decode=decode))
        assert begun == replace(known, connection=5, time=begun.time)
        assert ended == replace(
            begun,
            kind=END,
            time=ended.time,
            sent=1,
            received=2,
            milliseconds=3,
            outcome='said "no"',
            dialled=0.25,
        )
        assert (other.connection, other.dialled) == (6, None)
    long = replace(ONE, reason="\u20ac" * 1024, process="p" * 256, rule="r" * 300)
    ring.write(RecordedDecision(long).ended(1, 0, 0, 0, "\u20ac" * 500, None))
    assert ring.read(3)[0][1].host == ONE.host


def test_another_file_is_no_ring() -> None:
    with pytest.raises(ValueError, match="no ring"):
        Ring(os.open(os.devnull, os.O_RDWR))
