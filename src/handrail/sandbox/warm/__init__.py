"""Sandboxes that are made ahead and wait for their command (docs/decisions/0028)."""

from __future__ import annotations

import os

#: In our environment: ``off`` for none.  ``on``: every command that can be is started by the stub,
#: in a sandbox that is made at once if none waits.  Else they are made by demand.
CHOICE = "HANDRAIL_WARM"


def is_chosen(*, repeated: bool = True) -> bool:
    """Whether there are to be any, for the first command or a later one; without them nothing else
    of this package is imported."""
    choice = os.environ.get(CHOICE)
    return choice == "on" or (choice != "off" and repeated)
