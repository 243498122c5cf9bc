"""The mask, by arithmetic and by the compiled function alike."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from handrail.transport import masking

SIZES = [0, 1, 2, 3, 4, 5, 255, 16_383, 16_384, 16_385, 32_768, 100_003]


@pytest.mark.parametrize("size", SIZES)
def test_every_way_gives_the_same(size: int) -> None:
    rng = random.Random(size)
    data, mask = rng.randbytes(size), rng.randbytes(4)
    wanted = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    assert masking.apply_mask(data, mask) == wanted
    assert masking.mask_by_blocks(data, mask) == wanted
    fast = masking.compiled()
    assert fast is None or fast(data, mask) == wanted


def test_arithmetic_remains_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking.importlib.util, "find_spec", lambda name: None)
    assert masking.compiled() is None


def test_a_compiled_part_that_does_not_load_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "speedups.so"
    file.write_bytes(b"no library")
    assert masking._load(str(file)) is None
