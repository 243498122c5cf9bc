"""Make a keeper from the state that its previous version left (``save.py``)."""

from __future__ import annotations

import os
import socket

from handrail.keeper.child_record import Entry
from handrail.keeper.main import Keeper
from handrail.keeper.restart import save as reexec_save
from handrail.keeper.servers import fence
from handrail.keeper.timeout_and_grace import Deadline


def revive(state: int) -> Keeper:
    """Restore the keeper in its new version; it answers the request that caused the upgrade."""
    facts = reexec_save.read(state)
    if facts[0][1][0] != reexec_save.FORM:
        raise SystemExit("a handover of another form; the check before it was left out")
    head = reexec_save.KeeperRecord.unpack(facts[0][1])
    keeper = Keeper(head.orphan_ttl)
    keeper.children.mark = head.mark
    keeper.children.limits.files = (head.soft_files, head.hard_files)
    keeper.succession.lost_at = None if head.lost_at == b"None" else float(head.lost_at)
    if head.listener >= 0:
        keeper.listener = socket.socket(fileno=head.listener)
        keeper.listener.setblocking(False)
    for what, fields in facts[1:]:
        _take(keeper, what, fields)
    for entry in keeper.children.entries.values():
        keeper.children.watch_lone(entry)
    if head.holder >= 0:
        keeper.lease.ask(head.holder, head.holder_pid)
    if head.holder_pidfd >= 0:
        keeper.succession.holder = fence.Holder(head.holder_pid, head.holder_pidfd)
    _close_on_exec()
    for number in keeper.links:
        keeper.links.flush(number)
    keeper.count(head.asker, head.serial, os.getpid())
    return keeper


def _take(keeper: Keeper, what: bytes, fields: list[bytes]) -> None:
    """Read one record."""
    children = keeper.children
    if what == b"link":
        link = reexec_save.LinkRecord.unpack(fields)
        # Those of a keeper that asked for no proof were served by it.
        keeper.links.add(socket.socket(fileno=link.fd), link.proven != (b"0",))
    elif what == b"secret":
        keeper.secret = fields[0]
    elif what == b"unsent":
        unsent = reexec_save.UnsentRecord.unpack(fields)
        passed = [int(one) for one in unsent.passed.split(b",")] if unsent.passed else []
        waiting = keeper.links[unsent.fd].waiting
        waiting.append((unsent.op, unsent.serial, list(unsent.fields), passed))
    elif what == b"note":
        keeper.notes[fields[0]] = fields[1]
    elif what == b"child":
        _take_child(keeper, reexec_save.ChildRecord.unpack(fields))
    elif what == b"ended":
        ended = reexec_save.EndedRecord.unpack(fields)
        children.entries[ended.child].ended = ended.ended
    elif what == b"inside":
        children.entries[fields[0]].sandboxed = True
    elif what == b"watched":
        name, _, most = fields[1].partition(b"=")
        limits = children.watcher.limits.get(fields[0], {})
        children.watcher.add(fields[0], limits | {name: int(most)})
    elif what == b"ending":
        due = reexec_save.DeadlineRecord.unpack(fields)
        steps = [(int(when), int(number)) for when, number in map(bytes.split, due.steps)]
        ending = Deadline(due.cause, due.at, due.grace, steps, due.done)
        children.endings.set(due.child, ending)
    elif what == b"stray":
        stray = reexec_save.StrayRecord.unpack(fields)
        children.await_exit(Entry(stray.child, stray.pid, stray.mark, {}))


def _take_child(keeper: Keeper, record: reexec_save.ChildRecord) -> None:
    held = (one.rpartition(b"=") for one in record.held)
    fds = {name: int(number) for name, _, number in held}
    entry = Entry(record.child, record.pid, record.mark, fds, record.note)
    entry.status = record.status
    if record.user_ms >= 0:
        entry.usage = (record.user_ms, record.system_ms, record.max_rss)
    else:
        entry.usage = (None, None, None)
    entry.killed = record.killed
    entry.far = record.parent == 2
    keeper.children.entries[record.child] = entry
    if record.parent == 1:
        keeper.children.await_exit(entry)


def _close_on_exec() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                pass  # the descriptor of the listing itself
