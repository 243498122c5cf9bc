"""A keeper that becomes its next version without letting go of anything.

The table goes into a memfd, every descriptor is made inheritable, and the new program is executed
in the same process: it stays the parent of every child and the other end of every link.  What the
new program cannot read it would lose, so a server asks it first (``--check``) whether it can.

One line is one fact, fields joined by NUL and that written as hexadecimal: nothing needs escaping
and a keeper of any later version can read it.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from handrail import unnamed_file

if TYPE_CHECKING:
    from handrail.keeper.main import Keeper

#: Of the lines below; a keeper that does not know the number refuses to take over.
FORM = b"1"


def execute(keeper: Keeper, python: bytes, program: bytes, answer: tuple[int, int]) -> str:
    """Become that program; returns only when that failed, with the reason."""
    lines, fds = _table(keeper, answer)
    state = unnamed_file.create("handrail-keeper", inheritable=True)
    try:
        view = memoryview(b"\n".join(lines))
        while view:
            view = view[os.write(state, view) :]
        for fd in fds:
            os.set_inheritable(fd, True)
        # What comes meanwhile waits until the new program looks: none is lost, and none kills.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGCHLD))
        os.execv(python, [python, b"-s", b"-P", b"-S", program, b"--state", b"%d" % state])
    except OSError as error:
        return f"the new keeper cannot be executed: {error.strerror}"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for fd in fds:
            os.set_inheritable(fd, False)
        os.close(state)


def _line(what: bytes, *fields: bytes) -> bytes:
    return what + b" " + b"\0".join(fields).hex().encode()


def _table(keeper: Keeper, answer: tuple[int, int]) -> tuple[list[bytes], list[int]]:
    """Everything that is not in the kernel, and the descriptors that are."""
    listener = -1 if keeper.listener is None else keeper.listener.fileno()
    soft, hard = keeper.children.limits.files
    lines = [
        _line(
            b"keeper",
            FORM,
            b"%d" % listener,
            repr(keeper.orphan_ttl).encode(),
            b"%d" % keeper.children.mark,
            b"%d" % soft,
            b"%d" % hard,
            b"%d" % (-1 if keeper.lease.holder is None else keeper.lease.holder),
            b"%d" % keeper.lease.pid,
            b"%d" % (-1 if keeper.succession.holder is None else keeper.succession.holder.pidfd),
            repr(keeper.succession.lost_at).encode(),
            b"%d" % answer[0],
            b"%d" % answer[1],
        )
    ]
    fds = [] if listener < 0 else [listener]
    if keeper.succession.holder is not None and keeper.succession.holder.pidfd >= 0:
        fds.append(keeper.succession.holder.pidfd)
    for fd, link in keeper.links.items():
        fds.append(fd)
        lines.append(_line(b"link", b"%d" % fd, b"%d" % link.proven))
        for op, serial, fields, passed in link.waiting:
            fds += passed
            numbers = b",".join(b"%d" % one for one in passed)
            head = (b"%d" % fd, b"%d" % op, b"%d" % serial, numbers)
            lines.append(_line(b"unsent", *head, *fields))
    if keeper.secret:
        lines.append(_line(b"secret", keeper.secret))
    for key, value in keeper.notes.items():
        lines.append(_line(b"note", key, value))
    for entry in keeper.children.entries.values():
        fds += entry.fds.values()
        lines.append(
            _line(
                b"child",
                entry.child,
                b"%d" % entry.pid,
                b"%d" % entry.mark,
                b"-" if entry.status is None else b"%d" % entry.status,
                *entry.usage.split(),
                b"%d" % entry.killed,
                b"2" if entry.far else b"%d" % (entry.pid in keeper.children.by_pid),
                entry.note,
                *(b"%b=%d" % held for held in entry.fds.items()),
            )
        )
        if entry.ended:
            lines.append(_line(b"ended", entry.child, b"%d" % entry.ended))
        if entry.inside:
            lines.append(_line(b"inside", entry.child))
        ending = keeper.children.endings.get(entry.child)
        if ending is not None:
            steps = (b"%d %d" % step for step in ending.steps)
            clock = (b"%d" % one for one in (ending.at, ending.grace, ending.done))
            lines.append(_line(b"ending", entry.child, ending.cause, *clock, *steps))
    # Families of children that were forgotten while they ran.
    known = {entry.pid for entry in keeper.children.entries.values()}
    for pid, entry in keeper.children.by_pid.items():
        if pid not in known:
            lines.append(_line(b"stray", entry.child, b"%d" % pid, b"%d" % entry.mark))
    return lines, fds


def read(state: int) -> list[tuple[bytes, list[bytes]]]:
    """The facts another keeper left, in their order."""
    size = os.fstat(state).st_size
    text = os.pread(state, size, 0)
    os.close(state)
    facts = []
    for line in text.split(b"\n"):
        what, _, rest = line.partition(b" ")
        facts.append((what, bytes.fromhex(rest.decode()).split(b"\0")))
    return facts
