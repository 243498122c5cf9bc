"""A process that is being started, and the end of a start that was not wanted any more."""

from __future__ import annotations

import time

from handrail.errors import HandrailError


class StartCancelled(HandrailError):
    """The process was terminated before it had started."""


class Starting:
    """An id whose process is being started."""

    __slots__ = ("at", "cancelled")

    def __init__(self) -> None:
        self.at = (time.time(), time.monotonic())
        self.cancelled = False
