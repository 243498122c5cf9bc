"""Faults that can be armed, for tests of what happens in the worst moment.

``HANDRAIL_FAULTS=NAME:WHAT[@N],...``: at the N-th time (default 1) the place NAME is passed, WHAT
happens: ``crash`` (as by kill -9), ``stop`` (SIGSTOP), ``delay=SECONDS``, or the name of an errno,
raised from there on for as often as the place is passed.  ``short`` makes a place move at most as
many bytes as N says, always.  Off by default; a place then costs one look at ``armed``.
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
    """Read a plan; raises ValueError when it makes no sense."""
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
    """Something may happen here."""
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
    """How many bytes a place may move at a time."""
    planned = _plan.get(name)
    return min(size, planned[1]) if planned is not None and planned[0] == "short" else size


# Taken out of the environment: our children are none of it.
arm(os.environ.pop("HANDRAIL_FAULTS", ""))
