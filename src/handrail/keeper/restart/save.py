"""Execute the next version of the keeper in this process; children and descriptors are kept.

The table goes into a memfd, every descriptor is made inheritable, and the new program is executed
in the same process: it stays the parent of every child and the other end of every link.  What the
new program cannot read it would lose, so a server asks it first (``--check``) whether it can.

One line is one record, fields joined by NUL and that written as hexadecimal: nothing needs escaping
and a keeper of any version that knows ``FORM`` can read it, older ones included.
"""

from __future__ import annotations

import os
import signal

from handrail import memory_file
from handrail.keeper import messages, waiting_children
from handrail.keeper.fields import Fields
from handrail.keeper.noted_signals import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.keeper.child_record import Entry
    from handrail.keeper.children import Children
    from handrail.keeper.main import Keeper

#: Of the records below; a keeper that does not know the number refuses to take over.
FORM = b"1"


class KeeperRecord(Fields):
    """The keeper itself; -1 stands for a missing descriptor."""

    form: bytes
    listener: int
    orphan_ttl: float
    mark: int
    soft_files: int
    hard_files: int
    holder: int  # the link that has the lease
    holder_pid: int
    holder_pidfd: int
    lost_at: bytes  # as Python writes a number or None
    asker: int  # the link that asked for this
    serial: int


class LinkRecord(Fields):
    """A connected server."""

    fd: int
    proven: tuple[bytes, ...]  # 0 or 1; a keeper that asked for no proof wrote nothing


class UnsentRecord(Fields):
    """A message that a server has not taken yet."""

    fd: int
    op: int
    serial: int
    passed: bytes  # numbers of descriptors, joined by commas
    fields: tuple[bytes, ...]


class ChildRecord(Fields):
    """A child; its usage is -1 where it was not counted."""

    child: bytes
    pid: int
    mark: int
    status: int | None
    user_ms: int
    system_ms: int
    max_rss: int
    killed: bool
    parent: int  # 0: it has ended, 1: we are, 2: a keeper before us was
    note: bytes
    held: tuple[bytes, ...]  # name=number of each descriptor


class EndedRecord(Fields):
    """When a child has ended."""

    child: bytes
    ended: int


class DeadlineRecord(Fields):
    """A planned end; each step is a time and a signal."""

    child: bytes
    cause: bytes
    at: int
    grace: int
    done: int
    steps: tuple[bytes, ...]


class StrayRecord(Fields):
    """A child that was forgotten while it ran."""

    child: bytes
    pid: int
    mark: int


def execute(keeper: Keeper, become: messages.Reexec, answer: tuple[int, int]) -> str:
    """Execute that program; returns the reason only when it failed."""
    python, program = become.python, become.program
    waiting_children.end_all(keeper.children)
    try:
        keeper.links.make_all()
        lines, fds = _table(keeper, answer)
        state = memory_file.of("handrail-keeper", b"\n".join(lines), inheritable=True)
    except OSError as error:
        return f"the new keeper cannot be given the state of this one: {error.strerror}"
    # What comes meanwhile waits until the new program looks: none is lost, and none kills.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        for fd in fds:
            os.set_inheritable(fd, True)
        os.execv(python, [python, b"-s", b"-P", b"-S", program, b"--state", b"%d" % state])
    except OSError as error:
        return f"the new keeper cannot be executed: {error.strerror}"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for fd in fds:
            os.set_inheritable(fd, False)
        os.close(state)


def line(what: bytes, fields: list[bytes]) -> bytes:
    """One record as it is written."""
    return what + b" " + b"\0".join(fields).hex().encode()


def _table(keeper: Keeper, answer: tuple[int, int]) -> tuple[list[bytes], list[int]]:
    """All state that is not in the kernel, and the descriptors."""
    listener = -1 if keeper.listener is None else keeper.listener.fileno()
    before = keeper.succession.holder
    pidfd = -1 if before is None else before.pidfd
    head = KeeperRecord(
        FORM,
        listener,
        keeper.orphan_wait.ttl,
        keeper.children.mark,
        *keeper.children.limits.files,
        -1 if keeper.lease.holder is None else keeper.lease.holder,
        keeper.lease.pid,
        pidfd,
        repr(keeper.succession.lost_at).encode(),
        *answer,
    )
    lines = [line(b"keeper", head.pack())]
    fds = [fd for fd in (listener, pidfd) if fd >= 0]
    for fd, link in keeper.links.items():
        fds.append(fd)
        lines.append(line(b"link", LinkRecord(fd, (b"%d" % link.proven,)).pack()))
        for op, serial, fields, passed in link.waiting:
            fds += passed
            numbers = b",".join(b"%d" % one for one in passed)
            unsent = UnsentRecord(fd, op, serial, numbers, tuple(fields))
            lines.append(line(b"unsent", unsent.pack()))
    if keeper.secret:
        lines.append(line(b"secret", [keeper.secret]))
    lines += [line(b"note", [key, value]) for key, value in keeper.notes.items()]
    for entry in keeper.children.entries.values():
        fds += entry.fds.values()
        lines += _lines_of(entry, keeper.children)
    # Families of children that were forgotten while they ran.
    known = {entry.pid for entry in keeper.children.entries.values()}
    for pid, entry in keeper.children.by_pid.items():
        if pid not in known:
            lines.append(line(b"stray", StrayRecord(entry.child, pid, entry.mark).pack()))
    return lines, fds


def _lines_of(entry: Entry, children: Children) -> list[bytes]:
    """The records of one child; most have one."""
    user, system, rss = (-1 if one is None else one for one in entry.usage)
    record = ChildRecord(
        entry.child,
        entry.pid,
        entry.mark,
        entry.status,
        user,
        system,
        rss,
        entry.killed,
        2 if entry.far else int(entry.pid in children.by_pid),
        entry.note,
        tuple(b"%b=%d" % held for held in entry.fds.items()),
    )
    lines = [line(b"child", record.pack())]
    if entry.ended:
        lines.append(line(b"ended", EndedRecord(entry.child, entry.ended).pack()))
    if entry.sandboxed:
        lines.append(line(b"inside", [entry.child]))
    for limit in children.watcher.limits.get(entry.child, {}).items():
        lines.append(line(b"watched", [entry.child, b"%b=%d" % limit]))
    ending = children.endings.get(entry.child)
    if ending is not None:
        steps = tuple(b"%d %d" % step for step in ending.steps)
        due = (ending.cause, ending.at, ending.grace, ending.done)
        lines.append(line(b"ending", DeadlineRecord(entry.child, *due, steps).pack()))
    return lines


def read(state: int) -> list[tuple[bytes, list[bytes]]]:
    """The records that the previous keeper left, in their order."""
    size = os.fstat(state).st_size
    text = os.pread(state, size, 0)
    os.close(state)
    facts = []
    for line in text.split(b"\n"):
        what, _, rest = line.partition(b" ")
        facts.append((what, bytes.fromhex(rest.decode()).split(b"\0")))
    return facts
