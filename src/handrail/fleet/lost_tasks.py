"""Whether a task that was lost, with its node or its keeper, is run again.

When a node counts as lost: ``node.py`` (it is silent), ``actors.py`` (Ray says so).  What runs the
task again, on another node: ``task_map.py`` for ``map``, ``tasks/runner.py`` for a task file.
"""

from __future__ import annotations


def runs_again(idempotent: bool, attempts: int, retries: int) -> bool:
    """Whether it is safe to run twice, and has a try left after that many attempts."""
    return idempotent and attempts <= retries
