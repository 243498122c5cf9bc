"""What a child may touch.

``resolve`` an intent to a profile, make a plan of it, wrap a spec (``bwrap/command.py``);
``Sandbox`` does all three and remembers.  The names are imported when they are asked for: a single
command on the command line waits for every module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PLACES = {
    "Access": "profile",
    "BadIntent": "profile",
    "Entry": "profile",
    "Files": "profile",
    "Intent": "profile",
    "Machine": "profile",
    "Plan": "plan.plan",
    "Planner": "plan.plan",
    "Profile": "profile",
    "Refused": "plan.safe_open",
    "PlaceholderRegistry": "plan.placeholders",
    "Sandbox": "sandbox",
    "resolve": "profile",
}

__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"handrail.sandbox.{place}"), name)
