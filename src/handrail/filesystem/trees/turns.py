"""Calls about many files take turns: side by side their threads fight for the interpreter.

Each makes thousands of short system calls and wants the interpreter back after each of them. One
after the other they take two thirds of the processor time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds after which a call goes on beside another: a file system that hangs delays no more.
_PATIENCE = 0.2

_turn = threading.Lock()


@contextmanager
def turn() -> Iterator[None]:
    """Wait for the calls before this one, for a while."""
    ours = _turn.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if ours:
            _turn.release()
