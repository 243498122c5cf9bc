"""A keeper made of what the one before it left in this process (see ``reexec_save.py``)."""

from __future__ import annotations

import os
import socket

from handrail.keeper import fence, messages, reexec_save
from handrail.keeper.children import Entry
from handrail.keeper.deadlines import Deadline
from handrail.keeper.main import Keeper


def revive(state: int) -> Keeper:
    """The same keeper in a new program; it answers the question that led to it."""
    facts = reexec_save.read(state)
    head = facts[0][1]
    if head[0] != reexec_save.FORM:
        raise SystemExit("a handover of another form; the check before it was left out")
    listener, soft, hard, holder, pid, pidfd = map(
        int, (head[1], head[4], head[5], head[6], head[7], head[8])
    )
    keeper = Keeper(float(head[2]))
    keeper.children.mark = int(head[3])
    keeper.children.limits.files = (soft, hard)
    keeper.succession.lost_at = None if head[9] == b"None" else float(head[9])
    if listener >= 0:
        keeper.listener = socket.socket(fileno=listener)
        keeper.listener.setblocking(False)
    for what, fields in facts[1:]:
        if what == b"link":
            # Those of a keeper that asked for no proof were served by it.
            keeper.links.add(socket.socket(fileno=int(fields[0])), fields[1:] != [b"0"])
        elif what == b"secret":
            keeper.secret = fields[0]
        elif what == b"unsent":
            fd, op, serial, numbers = fields[:4]
            passed = [int(one) for one in numbers.split(b",")] if numbers else []
            waiting = keeper.links[int(fd)].waiting
            waiting.append((int(op), int(serial), fields[4:], passed))
        elif what == b"note":
            keeper.notes[fields[0]] = fields[1]
        elif what == b"child":
            _child(keeper, fields)
        elif what == b"ended":
            keeper.children.entries[fields[0]].ended = int(fields[1])
        elif what == b"inside":
            keeper.children.entries[fields[0]].inside = True
        elif what == b"ending":
            child, cause, at, grace, done, *steps = fields
            times = [(int(when), int(number)) for when, number in (one.split() for one in steps)]
            ending = Deadline(cause, int(at), int(grace), times, int(done))
            keeper.children.endings.set(child, ending)
        elif what == b"stray":
            child, stray, mark = fields
            keeper.children.by_pid[int(stray)] = Entry(child, int(stray), int(mark), {})
    for entry in keeper.children.entries.values():
        keeper.children.watch_lone(entry)
    if holder >= 0:
        keeper.lease.ask(holder, pid)
    if pidfd >= 0:
        keeper.succession.holder = fence.Holder(pid, pidfd)
    _close_on_exec()
    for number in keeper.links:
        keeper.links.flush(number)
    keeper.links.say(int(head[10]), messages.DONE, int(head[11]), [b"%d" % os.getpid()])
    return keeper


def _child(keeper: Keeper, fields: list[bytes]) -> None:
    child, pid, mark, status, user, system, rss, killed, ours, note, *held = fields
    fds = {name: int(number) for name, _, number in (one.rpartition(b"=") for one in held)}
    entry = Entry(child, int(pid), int(mark), fds, note)
    entry.status = None if status == b"-" else int(status)
    entry.usage = b"%b %b %b" % (user, system, rss)
    entry.killed = killed == b"1"
    entry.far = ours == b"2"
    keeper.children.entries[child] = entry
    if ours == b"1":
        keeper.children.by_pid[entry.pid] = entry


def _close_on_exec() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                pass  # the descriptor of the listing itself
