"""Writes one sentence to stderr without importing anything."""

from __future__ import annotations

import os


def complain(text: str, mark: str = "handrail: ") -> None:
    """Write it if possible; if not, the exit code still tells."""
    try:
        os.write(2, f"{mark}{text}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        pass
