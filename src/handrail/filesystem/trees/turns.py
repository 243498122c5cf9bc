"""Calls that write wait for each other where they must, and all calls about many files take turns.

Each makes a thousand short system calls and wants the interpreter back after each of them: on two
cores four at a time took up to five times the processor time of one after the other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds after which a call goes on beside another, several times what one takes from memory: with
#: a slow disk they wait for that at the same time, and a file system that hangs delays no other.
_PATIENCE = 0.1

#: How long the times of directories wait for other calls.
_LAST_SECONDS = 10.0

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


class Calls:
    """The calls under way, by root: directories get their times when no other call writes there.

    A call of a connection that was cut may still run when the caller has repeated it and goes on.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count: Counter[bytes] = Counter()

    @contextmanager
    def below(self, root: bytes, *, last: bool) -> Iterator[None]:
        """Count a call; ``last``: wait for the others, for a while."""
        with self._changed:
            if last:
                self._changed.wait_for(lambda: not self._count[root], _LAST_SECONDS)
            self._count[root] += 1
        try:
            yield
        finally:
            with self._changed:
                self._count[root] -= 1
                if not self._count[root]:
                    del self._count[root]
                self._changed.notify_all()


calls = Calls()
