"""The private directory in which the sandbox keeps what must survive us."""

from __future__ import annotations

import os
import stat

from handrail.errors import SandboxUnavailable


def state_base() -> str:
    """Where this user's state of handrail lives, made if it is not there; ours alone."""
    given = os.environ.get("XDG_STATE_HOME", "")
    home = given if given.startswith("/") else os.path.expanduser("~/.local/state")
    # Without a home of our own: a directory that the check below makes ours.
    places = [os.path.join(home, "handrail"), f"/var/tmp/handrail-{os.getuid()}"]  # noqa: S108
    for place in places:
        if place.startswith("/") and _ours(place):
            return place
    raise SandboxUnavailable(
        f"no private directory for the sandbox's state: {places[0]} cannot be used; set"
        " XDG_STATE_HOME to a directory that belongs to you alone"
    )


def _ours(place: str) -> bool:
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        status = os.lstat(place)
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return False
    if stat.S_IMODE(status.st_mode) & 0o022:
        return False
    return os.access(place, os.W_OK | os.X_OK, effective_ids=True)
