"""Telling somebody's listener, whose failures are its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E")
log = logging.getLogger(__name__)


def guarded(listener: Callable[[E], None]) -> Callable[[E], None]:
    """The listener, never raising: a process that runs must not be lost because a log is full."""

    def tell(event: E) -> None:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed at %s", type(event).__name__)

    return tell
