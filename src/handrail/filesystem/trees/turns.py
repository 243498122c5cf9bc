"""Calls about many files take turns: side by side their threads fight for the interpreter.

Each makes a thousand short system calls and wants the interpreter back after each of them: on two
cores four at a time took up to five times the processor time of one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds after which a call goes on beside another, several times what one takes from memory: with
#: a slow disk they wait for that at the same time, and a file system that hangs delays no other.
_PATIENCE = 0.1

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
