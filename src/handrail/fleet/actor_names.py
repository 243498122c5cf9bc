"""The names under which the actors and placement groups of a fleet are found in Ray."""

from __future__ import annotations

REGISTRAR = "registrar"


def namespace(fleet: str) -> str:
    """The namespace of a fleet's actors."""
    return f"handrail-fleet-{fleet}"


def group_name(fleet: str, share: str) -> str:
    """The name of a share's placement group."""
    return f"handrail-fleet-{fleet}/{share}"


def supervisor_name(share: str) -> str:
    """The name of a share's supervisor."""
    return f"supervisor-{share}"
