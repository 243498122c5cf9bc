"""Files with secrets that this process was given: no sandboxed command can read them."""

from __future__ import annotations

import os

_paths: dict[bytes, None] = {}


def add(path: str) -> None:
    """Hide this file from every sandbox that is prepared from now on."""
    _paths[os.fsencode(os.path.abspath(path))] = None


def paths() -> tuple[bytes, ...]:
    """What was added so far."""
    return tuple(_paths)
