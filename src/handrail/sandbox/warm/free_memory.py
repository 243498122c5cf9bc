"""Whether there is memory for sandboxes that wait."""

from __future__ import annotations

#: How much must be left free; one takes 136 KiB, and what the kernel has of it.
_FREE_BYTES = 512 << 20
#: How often it is asked for: it takes as long as all else that is looked at.
_LOOK_SECONDS = 1.0


class FreeMemory:
    """The memory of the machine, as it was a moment ago."""

    def __init__(self) -> None:
        self._asked = -_LOOK_SECONDS
        self._scarce = False

    def is_scarce(self, now: float) -> bool:
        """Whether too little is free."""
        if now >= self._asked + _LOOK_SECONDS:
            self._asked = now
            self._scarce = _free_bytes() < _FREE_BYTES
        return self._scarce


def _free_bytes() -> int:
    """Memory that is free, or can be made so."""
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass  # not told here
    return _FREE_BYTES
