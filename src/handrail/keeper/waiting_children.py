"""The children that wait for a command (``waiting_stub.py``): tell it to them, end them."""

from __future__ import annotations

import errno

from handrail.keeper import messages, spawn
from handrail.keeper.timeout_and_grace import CAUSE_TIME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.keeper.children import Children


def use(children: Children, fd: int, serial: int, asked: messages.Use) -> None:
    """Let a child that waits become a command, and tell the server whether it does, if it asks."""
    entry = children.entries.get(asked.child)
    line = None if entry is None or entry.status is not None else entry.line
    if entry is None or line is None:
        if serial:
            children.failed(fd, serial, errno.ESRCH)
        return
    try:
        spawn.use(asked, line, entry.fds.get(b"pty"))
    except OSError as error:
        if serial:
            children.failed(fd, serial, error.errno or errno.EINVAL)
        return
    finally:
        entry.close_line()  # it is never used twice
    entry.note = asked.note
    if asked.end_at is not None:
        children.end_by(entry, messages.Due(entry.child, CAUSE_TIME, asked.end_at, asked.grace))
    if serial:
        children.say(fd, messages.DONE, serial, messages.Count(0).pack())


def end_all(children: Children) -> None:
    """End the children that wait for a command: the server that would use them is gone.

    Without its line each ends by itself.  Killed, a bwrap that has just begun would leave its child
    behind if this keeper were killed before it had found that.
    """
    for entry in [entry for entry in children.entries.values() if entry.line is not None]:
        children.forget(entry.child)
