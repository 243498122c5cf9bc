"""What a case comes to."""

from __future__ import annotations


class NotRunError(Exception):
    """A case that means nothing here; the sentence says why."""


def difference(**pairs: tuple[object, object]) -> str | None:
    """None if every pair (expected, found) is equal, else the pairs that are not."""
    wrong = [
        f"{name}: expected {expected!r}, found {found!r}"
        for name, (expected, found) in pairs.items()
        if expected != found
    ]
    return "; ".join(wrong) or None
