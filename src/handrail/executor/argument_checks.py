"""Checks of session arguments, before anything is done; local and remote alike.  Pure."""

from __future__ import annotations

from handrail.errors import ExecutorSpawnFailed, UsageError
from handrail.sandbox.profile import Intent

MOST_CELLS = 65_535


def fits_terminal(rows: object, cols: object) -> bool:
    """Whether a terminal can have this size."""
    return type(rows) is int and type(cols) is int and 1 <= rows <= MOST_CELLS >= cols >= 1


def check_size(rows: object, cols: object) -> None:
    """Raise UsageError for a size that no terminal has."""
    if not fits_terminal(rows, cols):
        raise UsageError(
            f"a terminal has 1 to {MOST_CELLS} rows and columns, not {rows!r} x {cols!r}"
        )


def check_grace(grace: object) -> None:
    """Raise UsageError unless it is a number of seconds from 0 on."""
    if not isinstance(grace, (int, float)) or not 0 <= grace < float("inf"):
        raise UsageError(f"grace must be seconds from 0 on, not {grace!r}; 0 kills at once")


def check_sandbox(sandbox: object) -> None:
    """Raises ExecutorSpawnFailed unless it is an Intent or None: nothing else is ever enforced."""
    if sandbox is not None and not isinstance(sandbox, Intent):
        raise ExecutorSpawnFailed(f"sandbox policy {sandbox} is not supported by this executor")
