"""Faults that can be armed, for tests of failures at the worst moment.

``HANDRAIL_FAULTS=NAME:WHAT[@N],...``: at the N-th time (default 1) the point NAME is passed, WHAT
happens: ``crash`` (as by kill -9), ``stop`` (SIGSTOP), ``delay=SECONDS``, or the name of an errno,
raised from there on each time the point is passed.  ``short`` makes a point move at most N bytes,
always.  Off by default; a point then costs one check of ``armed``.
"""

from __future__ import annotations

import errno
import os
import signal
import time

_passed: dict[str, int] = {}
_plan: dict[str, tuple[str, int]] = {}
armed = False


def arm(text: str) -> None:
    """Parse a plan; raises ValueError when it makes no sense."""
    global armed
    for item in filter(None, text.split(",")):
        name, _, rest = item.partition(":")
        what, _, number = rest.partition("@")
        known = what in ("crash", "stop", "short") or what.startswith("delay=")
        if not known and getattr(errno, what, None) is None:
            raise ValueError(f"no such fault: {item}")
        _plan[name] = (what, int(number or 1))
    armed = bool(_plan)


def point(name: str) -> None:
    """Trigger the fault that is armed for this point, if any."""
    planned = _plan.get(name)
    if planned is None:
        return
    what, number = planned
    _passed[name] = count = _passed.get(name, 0) + 1
    if count < number or what == "short":
        return
    if what in ("crash", "stop"):
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL if what == "crash" else signal.SIGSTOP)
    elif what.startswith("delay="):
        time.sleep(float(what[6:]))
    else:
        code = getattr(errno, what)
        raise OSError(code, os.strerror(code))


def at_most(name: str, size: int) -> int:
    """How many bytes may be moved at this point at a time."""
    planned = _plan.get(name)
    return min(size, planned[1]) if planned is not None and planned[0] == "short" else size


# Removed from the environment: not meant for our children.
arm(os.environ.pop("HANDRAIL_FAULTS", ""))
