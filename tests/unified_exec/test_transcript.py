from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.unified_exec import transcript as module
from handrail.unified_exec.transcript import Transcript

STEPS = st.lists(
    st.one_of(st.binary(min_size=1, max_size=9), st.integers(1, 5)), min_size=1, max_size=20
)


@given(STEPS, st.integers(2, 24), st.booleans())
def test_what_is_read_is_what_was_written_there(
    steps: list[bytes | int], limit: int, on_disk: bool
) -> None:
    transcript = Transcript(limit)
    original, module.MEMORY = module.MEMORY, 2 if on_disk else module.MEMORY
    whole: list[int | None] = []
    try:
        for step in steps:
            if isinstance(step, int):
                transcript.skip(step)
                whole += [None] * step
            else:
                transcript.append(step)
                whole += step
        assert transcript.total == len(whole)
        at, seen = 0, 0
        while at < len(whole):
            part = transcript.read(at, 4)
            assert part.missing == part.offset - at
            assert list(part.data) == whole[part.offset : part.offset + len(part.data)]
            assert part.data or part.offset == len(whole)
            at = part.offset + len(part.data)
            seen += len(part.data)
        lost = len([byte for byte in whole if byte is None])
        assert seen >= min(limit, len(whole)) - lost
    finally:
        module.MEMORY = original
        transcript.close()


def test_a_small_one_makes_no_file_and_a_large_one_has_no_name(tmp_path: Path) -> None:
    transcript = Transcript(1 << 20, str(tmp_path))
    transcript.append(b"x" * 1000)
    assert transcript.size == 0
    transcript.append(b"y" * 100_000)
    assert transcript.size == 101_000
    assert list(tmp_path.iterdir()) == []
    assert transcript.read(999, 2).data == b"xy"
    transcript.close()
    assert transcript.read(0, 10).data == b""


def test_the_start_and_the_newest_stay_and_the_rest_is_said_to_be_missing() -> None:
    transcript = Transcript(200_000)
    for number in range(1000):
        transcript.append(b"%03d" % number * 100)
    assert transcript.size == 200_000
    assert transcript.read(0, 6).data == b"000000"
    between = transcript.read(100_000, 6)
    assert between.offset == 200_000
    assert between.missing == 100_000
    assert transcript.read(299_994, 100).data == b"999999"
    assert len(transcript.read(0, 1 << 20).data) == 100_000
    transcript.close()


def test_a_disk_that_takes_nothing_costs_the_transcript_only(tmp_path: Path) -> None:
    transcript = Transcript(1 << 20, str(tmp_path / "missing"))
    transcript.append(b"x" * 100_000)
    transcript.append(b"y")
    part = transcript.read(0, 10)
    assert (part.data, part.total, part.missing) == (b"", 100_001, 100_001)
    transcript.close()


def test_a_write_that_fails_costs_the_transcript_only(monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = Transcript(1 << 20)
    transcript.append(b"x" * 100_000)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "pwrite", full)
        transcript.append(b"y")
    transcript.append(b"z")
    part = transcript.read(0, 10)
    assert (part.data, part.missing) == (b"", 100_002)
    transcript.close()
