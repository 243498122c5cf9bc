"""Saying what a file call should fail with."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from handrail.errors import FilesError

T = TypeVar("T")


@contextmanager
def failing(kind: str, text: str | None = None) -> Iterator[None]:
    """The block raises FilesError of this kind, and with this sentence if one is given."""
    with pytest.raises(FilesError) as caught:
        yield
    assert caught.value.kind == kind, caught.value
    if text is not None:
        assert str(caught.value) == text


def as_nobody(call: Callable[[], T]) -> T:
    """Run ``call`` with the file permissions of an ordinary user.

    The fs uid belongs to a thread on Linux, and leaving 0 takes the capabilities about files
    along; so a thread of its own is enough, and the test stays root.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        libc = ctypes.CDLL(None)
        libc.setfsgid(65534)
        libc.setfsuid(65534)
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001  raised again below
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
