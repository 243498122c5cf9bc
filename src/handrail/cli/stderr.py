"""One sentence to stderr, without anything that would have to be imported."""

from __future__ import annotations

import os


def complain(text: str, mark: str = "handrail: ") -> None:
    """Say it if it can be said: the exit code tells the same."""
    try:
        os.write(2, f"{mark}{text}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        pass
