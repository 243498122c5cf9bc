"""The page of the architecture names modules and packages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "handrail"
#: A module or package in its place, such as ``keeper/tree.py`` or ``results/``.
NAMED = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|txt))?|[a-z_]+\.(?:py|txt))`")


def missing(text: str) -> list[str]:
    """What is named and does not exist; a bare module may be in any package."""
    return [
        name
        for name in NAMED.findall(text)
        if not ((SOURCE / name).exists() or (ROOT / name).exists())
        and ("/" in name or not any(SOURCE.rglob(name)))
    ]


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_what_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    assert NAMED.search(text)
    assert missing(text) == []


def test_a_module_that_has_moved_is_found() -> None:
    said = "`keeper/tree.py`, `tree.py`, `server/auth/`, `server/tree.py`, `server/rooms/`, `no.py`"
    assert missing(said) == ["server/tree.py", "server/rooms/", "no.py"]
