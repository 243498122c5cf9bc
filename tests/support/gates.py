"""Gates for children to wait at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Gate:
    """A named pipe that children wait at: ``read line < path`` goes on when it is opened."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open(self, times: int = 1) -> None:
        os.write(self._fd, b"go\n" * times)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def gate(path: Path) -> Iterator[Gate]:
    made = Gate(path)
    try:
        yield made
    finally:
        made.close()
