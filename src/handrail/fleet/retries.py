"""Whether a task that was lost, with its node or its keeper, is run again."""

from __future__ import annotations


def runs_again(idempotent: bool, attempts: int, retries: int) -> bool:
    """Whether it is safe to run twice, and has a try left after that many attempts."""
    return idempotent and attempts <= retries
