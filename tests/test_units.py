"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from handrail import UsageError
from handrail.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300.0), ("1.5h", 5400.0), ("90s", 90.0), ("250ms", 0.25), ("7", 7.0), ("2 d", 172800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("500MB", 500_000_000),
        ("64k", 65536),
        ("2G", 2 << 30),
        ("1.5MiB", 3 << 19),
        ("17", 17),
        ("9007199254740993b", 9007199254740993),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5x", "m", "-5m", "1e9", "nan", "inf", "1.2.3s", "٣ m"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="write one like 90s, 5m"):
        parse_duration(text)
    with pytest.raises(UsageError, match="write one like 2GiB, 500MB"):
        parse_size(text if text != "m" else "1.3b")
