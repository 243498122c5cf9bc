"""Sandboxes that are made ahead and wait for their command (docs/decisions/0028)."""

from __future__ import annotations

import os

#: In our environment: ``demand`` makes them by demand.  ``on``: every command that can be is
#: started by the stub, in a sandbox that is made at once if none waits.  Else there are none.
CHOICE = "HANDRAIL_WARM"


def is_chosen() -> bool:
    """Whether there are to be any; without them nothing else of this package is imported."""
    return os.environ.get(CHOICE) in ("demand", "on")
