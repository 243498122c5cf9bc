"""State directories that were given to servers, and that no living program uses any more.

Sandboxes cover what servers were given (``private_places.remember``).  A server that stops retires
its own directory; those of servers that were killed are found here, when another one stops.
"""

from __future__ import annotations

import contextlib
import os
import socket

from handrail import private_files, private_places
from handrail.errors import UsageError
from handrail.filesystem import stage_names
from handrail.server import session_temp
from handrail.server.recovery.orphan_sweep import any_left
from handrail.server.recovery.state_dir import SOCKET, StateDir, take

#: Directories that one server looks at when it stops.
_MOST_RETIRED = 64


def retire() -> None:
    """Retire the directories of servers that were killed, if their keepers are gone as well.

    Each of them costs a mount in every sandbox that sees it.
    """
    unused: list[StateDir] = []
    try:
        for place in private_places.remembered()[:_MOST_RETIRED]:
            with contextlib.suppress(OSError, UsageError):  # it cannot be told: it stays covered
                taken = _unused(os.fsdecode(place))
                if taken is not None:
                    unused.append(taken)
        # Locked until here: the next server has its directory covered anew.
        private_places.forget(*(state.path for state in unused))
    finally:
        for state in unused:
            state.close()


def _unused(path: str) -> StateDir | None:
    """Lock a directory that no program uses, and clear it; raises OSError, UsageError."""
    taken = None if _answers(path) else take(path, to_retire=True)
    if taken is None:
        return None
    try:
        # Again, with the lock: a server may have come and gone.
        if _answers(path) or any_left(taken.fd):
            return None
        # What the records name is removed now: the next server does not believe them, for the
        # directory is not covered any more.
        session_temp.clear_all(taken.fd)
        stage_names.sweep(taken.fd)
        if taken.remove_secret():
            held, taken = taken, None
            return held
    finally:
        if taken is not None:
            taken.close()
    return None


def _answers(path: str) -> bool:
    """Whether a process listens on the keeper's socket of a directory."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            sock.connect(private_files.socket_address(directory, SOCKET))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:
        return True  # too many wait to be heard, for example
    finally:
        os.close(directory)
    return True
