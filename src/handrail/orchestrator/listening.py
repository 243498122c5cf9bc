"""Calls listeners so that their failures stay their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E")
log = logging.getLogger(__name__)


def guarded(listener: Callable[[E], None]) -> Callable[[E], None]:
    """Wrap a listener so that it never raises: a full log must not cost a running process."""

    def tell(event: E) -> None:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed at %s", type(event).__name__)

    return tell
