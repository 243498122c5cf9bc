"""The one form every run ends in: the four normalisations, by name, and the texts."""

from __future__ import annotations

import pytest

from handrail.orchestrator.result import (
    MESSAGE_LIMIT,
    CommandTimedOut,
    ExecOutput,
    aggregate,
    normalise,
)

OUTPUT = ExecOutput(3, b"out", b"err", b"outerr", 1.25)


def test_success_is_normalised_to_the_same_object() -> None:
    assert normalise(OUTPUT) is OUTPUT


def test_timeout_is_normalised_to_the_output_inside_the_error() -> None:
    assert normalise(CommandTimedOut(OUTPUT, 1.0)) is OUTPUT


def test_any_other_error_is_normalised_to_a_readable_message() -> None:
    found = normalise(RuntimeError("no `FOO`"))
    assert found.stderr == b"no `FOO`"
    assert (found.exit_code, found.stdout, found.duration) == (-1, b"", 0.0)
    assert found.aggregated == found.stderr
    assert not found.timed_out


def test_a_long_message_is_cut_in_its_middle() -> None:
    found = normalise(RuntimeError("a" * 5000 + "ü" * 5000)).stderr
    assert len(found) <= MESSAGE_LIMIT
    assert found.startswith(b"aaa")
    assert found.decode().endswith("ü")


@pytest.mark.parametrize(
    ("out", "err", "cap", "whole"),
    [
        (b"ab", b"cd", 4, b"abcd"),
        (b"a" * 9, b"b" * 9, 9, b"aaabbbbbb"),
        (b"a" * 9, b"bb", 9, b"aaaaaaabb"),
        (b"aa", b"b" * 9, 9, b"aabbbbbbb"),
        (b"a" * 20, b"", 9, b"a" * 9),
    ],
)
def test_what_of_both_streams_is_kept(out: bytes, err: bytes, cap: int, whole: bytes) -> None:
    assert aggregate(out, err, cap) == whole
