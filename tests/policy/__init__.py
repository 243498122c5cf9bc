"""Tests of ``handrail.policy``; ``cases`` reads the verified cases both systems share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parents[1] / "cases"


def cases(name: str) -> list[Any]:
    """The cases of one file as pytest parameters, named by their ids."""
    lines = (CASES / name).read_text(encoding="utf-8").splitlines()
    return [pytest.param(case, id=case["id"]) for case in map(json.loads, lines)]
