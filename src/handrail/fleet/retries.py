"""Whether a task that was lost, with its node or its keeper, is run again."""

from __future__ import annotations


def runs_again(*, lost: bool, idempotent: bool, attempts: int, retries: int) -> bool:
    """Whether it is: it must be safe to run twice, and have tries left after that many."""
    return lost and idempotent and attempts <= retries
