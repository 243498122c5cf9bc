"""Protect a process of ours from its children, and from the terminal that it was started at.

Children run as the same user.  Unless a process says otherwise, they can read its environment
and its memory through ``/proc``, and a crash leaves a core file with both.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal

_PR_SET_DUMPABLE = 4
#: In the environment: leave us open to debuggers and to tests that are not root.
INSPECT = "HANDRAIL_INSPECT"
#: In a keeper's environment: the limit on core files that its children get.
_CORE = "HANDRAIL_CORE"


def become_private() -> None:
    """Close ``/proc`` of this process to other processes of the user, and leave no core file.

    It does not bind children that run as root: for these only a sandbox helps.
    """
    core = resource.getrlimit(resource.RLIMIT_CORE)
    if core[0]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))
    if os.environ.get(INSPECT) != "1":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def ignore_terminal() -> None:
    """Ignore what a terminal sends by its keys and by its end, and lost readers of a pipe."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def core_limit() -> tuple[int, int]:
    """The core limit at the start of this process; kept over an upgrade, which finds 0."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    soft = int(os.environ.setdefault(_CORE, str(soft)))
    return soft, hard


def for_keeper(environ: dict[str, str]) -> dict[str, str]:
    """The variables that a keeper needs: those that load its interpreter, and handrail's own."""
    return {
        name: value
        for name, value in environ.items()
        if name in _NEEDED or (name.startswith("HANDRAIL_") and name != _CORE and not _secret(name))
    }


_NEEDED = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ"}


def _secret(name: str) -> bool:
    return any(word in name for word in ("KEY", "SECRET", "TOKEN", "PASSWORD"))
