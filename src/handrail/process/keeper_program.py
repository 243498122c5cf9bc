"""Starting the keeper, as the first thing a server does.

Apart from ``launcher.py`` so that the program can be started before asyncio is imported: both
then get ready at the same time.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from typing import NamedTuple

from handrail.keeper import link, privacy


class KeeperHandle(NamedTuple):
    """A keeper that runs and was not spoken to yet."""

    sock: socket.socket
    pid: int
    found: bool = False  # it was there already, and is nobody's child of ours


def become_private() -> None:
    """Have children see as little of this process as of its keeper."""
    privacy.become_private()


def start_keeper(
    *, listener: socket.socket | None = None, orphan_ttl: float = 600.0, log: str | None = None
) -> KeeperHandle:
    """Start the program.  Without ``listener`` it ends when our end of the link closes.

    Called before the event loop is made, so that it starts while we still import.
    """
    ours, theirs = link.pair()
    main = os.path.join(os.path.dirname(link.__file__), "__main__.py")
    # Out of the way of the numbers the keeper will find them under.
    first = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 16)
    second = fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 16) if listener else -1
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, log or "/dev/null", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, first, 3),
    ]
    if listener is not None:
        actions.append((os.POSIX_SPAWN_DUP2, second, 4))
    argv = [sys.executable, "-I", "-S", main, "3", "4" if listener else "-", str(orphan_ttl)]
    try:
        # Not our whole environment: it may hold secrets, and outlives us there.
        env = privacy.for_keeper(dict(os.environ))
        pid = os.posix_spawn(
            sys.executable, argv, env, file_actions=actions, setsid=True, setsigmask=()
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(first)
        if second >= 0:
            os.close(second)
    return KeeperHandle(ours, pid)
