"""The children: one entry each, with everything the keeper holds of it.

What a child leaves behind (its descriptors, its exit status) stays in the table until the
server says FORGET, so that the next server finds it.

What a child has used is counted when the kernel hands it over with its status: of the child and of
the descendants that were waited for, which includes those that came to us as orphans before the
child ended.  Of a sandboxed child the most important of these is the first process of its PID
namespace: it has waited for the command, and comes to us when the leader has ended.  When that
process is killed, the kernel ends the others without counting them, and a process that is asked to
end may take longer than the child.  So what a tree has used is looked up before it is ended, too.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import signal
import struct
import time
from collections.abc import Iterable, Iterator

from handrail.keeper import malloc_trim, messages, orphan_kill, own_fds, spawn, tree
from handrail.keeper.child_record import Entry
from handrail.keeper.limits import cgroups, group_spawn, tree_watcher
from handrail.keeper.proc_children import children_of, orphans_path, read_open, without
from handrail.keeper.readiness import Readiness
from handrail.keeper.servers import fence
from handrail.keeper.servers.lease import Lease
from handrail.keeper.servers.links import Making, ServerLinks
from handrail.keeper.spawn import Started
from handrail.keeper.timeout_and_grace import CAUSE_TIME, Deadline, Deadlines

#: What RELEASE closes; everything else we hold of a child is its retained output.
_STREAMS = {b"stdout", b"stderr", b"stdin", b"pty", b"staging", spawn.LISTENER_NAME}

_NOTHING: dict[bytes, int] = {}

#: For a look whether a child has ended.
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_OF_THIS_THREAD = 0x20000000  # __WNOTHREAD


class Children:
    """All children, by the number that the server gave them and by their pid."""

    def __init__(self, links: ServerLinks, lease: Lease, poll: Readiness) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.by_pid: dict[int, Entry] = {}  # of those that are our own and run
        self.by_mark: dict[int, Entry] = {}  # the same
        self.by_pidfd: dict[int, Entry] = {}  # those of them that another thread has started
        self.unseen: set[int] = set()  # the pids of such without a pidfd
        self.lone: dict[int, Entry] = {}  # by their descriptors, those of a keeper before us
        self.links = links
        self.say = links.say
        self.lease = lease
        self.poll = poll
        self.limits = spawn.Limits()
        self.groups = cgroups.Cgroups()
        if self.groups.everyone:
            group_spawn.make_ready()
        self.mark = int.from_bytes(os.urandom(4), "big") << 24
        self.endings = Deadlines(self.signal_ending)
        self.watcher = tree_watcher.Watcher(self.members, self.end_exceeding)
        self.forgotten = 0  # since memory was given back
        self.listing = -1  # the kernel's list of orphans, open from the start on
        self.near = True  # orphans come to us; else they are looked for on the whole machine

    @property
    def tree_limits(self) -> set[bytes]:
        """The limits of whole trees that can be kept here; a tree must be near to be looked at."""
        found = self.groups.limits.keys() | (tree_watcher.NAMES if self.near else frozenset())
        return found | {cgroups.GROUP} if self.groups.shared else found

    def spawn(self, fd: int, message: messages.Message) -> None:
        asked = messages.Spawn.unpack(message.fields)
        child = asked.child
        if child in self.entries:
            self.failed(fd, message.serial, errno.EEXIST)
            return
        self.mark += 1
        try:
            started = spawn.start(
                asked,
                self.mark,
                message.fds[0],
                dict(zip(asked.passed, message.fds[1:], strict=True)),
                self.limits,
                self.groups.prepare(self.mark, asked.limits),
            )
        except (OSError, ValueError, struct.error) as error:
            # ValueError: what Python itself refuses, such as an empty first argument.
            number = error.errno if isinstance(error, OSError) else None
            self.groups.forget(self.mark)
            self.failed(fd, message.serial, number or errno.EINVAL)
            return
        held = dict(zip(started.names, started.fds, strict=True))
        entry = Entry(child, started.pid, self.mark, held, asked.note)
        entry.sandboxed = asked.sandboxed
        entry.line = started.line
        self.entries[child] = entry
        self.await_exit(entry)
        if started.apart:
            self.unseen.add(entry.pid)
        if asked.limits:
            self.watcher.add(child, self.groups.not_held(asked.limits))
        if asked.end_at is not None:
            self.end_by(entry, messages.Due(child, CAUSE_TIME, asked.end_at, asked.grace))
        try:
            self.hand_over(fd, message.serial, entry, started)
        except OSError as error:
            self.not_handed_over(fd, message.serial, child, error)

    def not_handed_over(self, fd: int, serial: int, child: bytes, error: OSError) -> None:
        """End a child of which no server would ever know."""
        self.signal(child, signal.SIGKILL, messages.SCOPE_TREE)
        self.forget(child)
        self.failed(fd, serial, error.errno or 0)

    def failed(self, fd: int, serial: int, number: int) -> None:
        self.say(fd, messages.FAILED, serial, messages.Count(number).pack())

    def await_exit(self, entry: Entry) -> None:
        """Wait for the exit of a running child of this keeper."""
        self.by_pid[entry.pid] = self.by_mark[entry.mark] = entry

    def watch(self, entry: Entry) -> None:
        """See its exit by a pidfd, as there are many; raises OSError when none is left for it."""
        entry.pidfd = pidfd = _pidfd(entry)
        self.poll.register(pidfd, select.EPOLLIN)
        self.by_pidfd[pidfd] = entry
        self.unseen.discard(entry.pid)

    def unwatch(self, entry: Entry) -> None:
        """Close the pidfd of a child; the server may have a copy, so it is taken out first."""
        if self.by_pidfd.pop(entry.pidfd, None) is not None:
            self.poll.unregister(entry.pidfd)
            os.close(entry.pidfd)
            entry.pidfd = -1

    def hand_over(self, fd: int, serial: int, entry: Entry, started: Started) -> None:
        """Give the server what it needs of a child: its descriptors, and a pidfd."""
        fields = messages.Spawned.packed(entry.child, entry.pid, entry.mark)
        if started.apart:
            self.watch(entry)
            self.say(fd, messages.SPAWNED, serial, fields, [*started.fds, entry.pidfd])
            return
        pidfd = _pidfd(entry)
        message = (messages.SPAWNED, serial, fields, [*started.fds, pidfd])
        failed = functools.partial(self.not_handed_over, fd, serial, entry.child)
        self.links.gather(fd, message, failed, spent=pidfd)

    def keep(self, copy: messages.Copy, fds: list[int]) -> None:
        """Hold the last of these fds for a child, in place of an earlier one of that name."""
        entry = self.entries.get(copy.child)
        if entry is not None and fds and not own_fds.only_reserve_left(fds[-1]):
            old = entry.fds.get(copy.name)
            if old is not None:
                os.close(old)
            if entry.fds is _NOTHING:
                entry.fds = {}
            entry.fds[copy.name] = fds.pop()

    def drop(self, copy: messages.Copy) -> None:
        """Close the descriptor that is held under that name."""
        entry = self.entries.get(copy.child)
        if entry is not None and copy.name in entry.fds:
            os.close(entry.fds.pop(copy.name))

    def describe_all(self, serial: int) -> Iterator[Making]:
        """Everything that the keeper knows and holds of its children, a message for each."""
        for entry in list(self.entries.values()):
            yield functools.partial(self._describe, entry, serial)

    def _describe(self, entry: Entry, serial: int) -> Iterator[messages.Outgoing]:
        if self.entries.get(entry.child) is not entry:
            return  # forgotten meanwhile
        held = dict(entry.fds)
        pidfd = -1
        if entry.pidfd >= 0:
            held[b"pidfd"] = entry.pidfd
        elif entry.status is None and entry.pid in self.by_pid:
            # Not reaped yet, so the number is still its own.
            held[b"pidfd"] = pidfd = os.pidfd_open(entry.pid)
        try:
            fields = self.state_of(entry, list(held)).pack()
            yield messages.CHILD, serial, fields, list(held.values())
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def state_of(self, entry: Entry, names: list[bytes]) -> messages.ChildState:
        """What the keeper knows of a child, with the names of its descriptors."""
        ending = self.endings.get(entry.child)
        due = () if ending is None else (ending.cause, ending.at, ending.grace, ending.done)
        return messages.ChildState(
            entry.child,
            entry.pid,
            entry.mark,
            entry.sandboxed,
            entry.status,
            *entry.usage,
            entry.ended,
            entry.note,
            names,
            entry.killed,
            *due,
        )

    def adopt(self, state: messages.ChildState, fds: list[int]) -> None:
        """Hold the descriptors of a child whose keeper has died; this keeper is not its parent."""
        if state.child not in self.entries and len(state.names) == len(fds):
            held = dict(zip(state.names, fds, strict=True))
            entry = Entry(state.child, state.pid, state.mark, held, state.note)
            entry.usage = (state.user_ms, state.system_ms, state.max_rss)
            entry.ended, entry.status = state.ended, state.status
            entry.far, entry.sandboxed = True, state.sandboxed
            self.entries[state.child] = entry
            fds.clear()  # ours now
            self.watch_lone(entry)

    def watch_lone(self, entry: Entry) -> None:
        """Watch the pidfd of a process that is not our child: only its parent gets its exit."""
        lone = entry.fds.get(b"lone")
        if entry.far and lone is not None and entry.status is None and not entry.ended:
            self.lone[lone] = entry
            self.poll.register(lone, select.POLLIN)

    def lone_ended(self, fd: int) -> None:
        """Record the end of such a process; the server finds out its status."""
        entry = self.lone.pop(fd)
        self.poll.unregister(fd)
        entry.ended = time.monotonic_ns() // 1_000_000
        self.endings.exited(entry.child, entry.ended)
        if entry.killed or entry.sandboxed:
            tree.kill_afar(None, {entry.mark})

    def end_by(self, entry: Entry, due: messages.Due) -> None:
        """Set the time at which a child is asked to end; it is killed when its grace is over."""
        terminal = b"pty" in entry.fds and entry.status is None
        ending = Deadline.plan(due.cause, due.at, due.grace, terminal=terminal)
        if due.done >= 0:
            ending.go_on(due.done)
        self.endings.set(entry.child, ending)

    def due(self, due: messages.Due) -> None:
        """Set the end of a child as a server asked for."""
        entry = self.entries.get(due.child)
        if entry is not None:
            self.end_by(entry, due)

    def signal_ending(self, child: bytes, number: int, at: int) -> bool:
        """Send the next signal of an end; False when a sandbox is set up and none got it."""
        entry = self.entries.get(child)
        if entry is not None and entry.status is None and not entry.far:
            entry.asked = True
            entry.note_living(*tree.used(entry.pid, entry.mark, self.by_pid))
        reached = self.signal(child, number, messages.SCOPE_TREE)
        if entry is not None and entry.sandboxed and entry.status is None and not reached:
            return False
        if self.lease.holder is not None:
            self.say(self.lease.holder, messages.BEGUN, 0, messages.Begun(child, at).pack())
        return True

    def signal(self, child: bytes, number: int, scope: bytes) -> int:
        entry = self.entries.get(child)
        if entry is None:
            return 0
        leader = self.leader(entry)
        lives = entry.status is None and not entry.ended
        if scope == messages.SCOPE_TREE and number == signal.SIGKILL and lives:
            entry.killed = True  # and what it has started by the time it is reaped, too
            self.endings.overtaken(child)
        if scope == messages.SCOPE_TREE and entry.sandboxed and number != signal.SIGKILL:
            return 0 if leader is None else tree.send_inside(leader, number)
        if scope == messages.SCOPE_TREE and (entry.far or not self.near):
            if number == signal.SIGKILL:
                return tree.kill_afar(leader, {entry.mark})
            return tree.send_afar(leader, {entry.mark}, number)
        if scope == messages.SCOPE_TREE:
            if number == signal.SIGKILL:
                if lives and leader and tree.kill_lone(leader, entry.mark, self.by_pid):
                    entry.childless = True
                    return max(self.groups.kill(entry.mark), 1)
                if lives and leader:
                    entry.note_living(*tree.used(leader, entry.mark, self.by_pid))
                reached = self.groups.kill(entry.mark)
                # And a process that has left the group, as one with the right to may.
                return max(reached, tree.kill(leader, entry.mark, self.by_pid, entry.count))
            return tree.send(leader, entry.mark, self.by_pid, number)
        if leader is None:
            return 0
        try:
            if scope == messages.SCOPE_GROUP:
                os.killpg(leader, number)
            else:
                os.kill(leader, number)
        except OSError:
            return 0
        return 1

    def members(self, child: bytes) -> set[int] | None:
        """The processes of a tree; None when it has ended and no descendant is left."""
        entry = self.entries[child]
        leader = self.leader(entry)
        found = tree.members(leader, entry.mark, self.by_pid)
        return found if found or leader is not None else None

    def end_exceeding(self, child: bytes, name: bytes) -> None:
        """End a tree that has exceeded a limit, and mark its exit with that."""
        starved = name == b"memory"
        self.entries[child].exceeded = cgroups.OUT_OF_MEMORY if starved else tree_watcher.TOO_MANY
        self.signal(child, signal.SIGKILL, messages.SCOPE_TREE)

    def leader(self, entry: Entry) -> int | None:
        """The pid of a leader that is running."""
        if entry.status is not None:
            return None
        lone = entry.fds.get(b"lone")
        if entry.far and (lone is None or not fence.alive(lone)):
            return None  # not our child, and its pid may be another process's by now
        return entry.pid

    def orphans(self) -> messages.Orphans:
        self.reap()  # the dead are not counted
        found = tree.orphans_by_mark(self.by_pid)
        entries = self.entries.values()
        far = {entry.mark: self.leader(entry) for entry in entries if entry.far or not self.near}
        if far:
            found |= tree.orphans_afar(far)
        left = (entry for entry in self.entries.values() if entry.mark in found)
        return messages.Orphans({entry.child: found[entry.mark] for entry in left})

    def release(self, child: bytes) -> None:
        entry = self.entries.get(child)
        if entry is not None:
            for name in _STREAMS & entry.fds.keys():
                os.close(entry.fds.pop(name))
            if not entry.fds:
                entry.fds = _NOTHING  # one for all: there may be very many entries

    def forget(self, child: bytes) -> None:
        entry = self.entries.pop(child, None)
        if entry is not None:
            lone = entry.fds.get(b"lone")
            if lone in self.lone:
                del self.lone[lone]
                self.poll.unregister(lone)
            for held in entry.fds.values():
                os.close(held)
            entry.fds.clear()
            entry.close_line()
            self.endings.drop(child)
            self.watcher.drop(child)
            self.groups.forget(entry.mark)

    def forget_all(self, children: list[bytes]) -> None:
        """Forget many children, and release what they held."""
        for child in children:
            self.forget(child)
        self.forgotten += len(children)
        if self.forgotten >= (1024 if self.entries else malloc_trim.MANY):
            self.forgotten = 0
            self.entries = dict(self.entries)  # a table that was large stays so, when emptied
            malloc_trim.give_back()

    def reap(self, pidfds: Iterable[int] = ()) -> None:
        """Take the status of every child that has ended: leaders by these pidfds, and orphans.

        The kernel finds any of few children, and looks at all of them for that: 5 us for 500.
        From then on they are started by another thread (``spawn_thread.py``) and have pidfds, and
        the kernel looks at this thread's, orphans among them: nothing here grows any more.
        """
        apart = bool(self.by_pidfd) and not self.unseen
        ended, childless = self.reap_any(_ENDED | _OF_THIS_THREAD if apart else _ENDED)
        # After the orphans that have ended with them, so that these are counted.
        for fd in pidfds:
            entry = self.by_pidfd.get(fd)
            if entry is None:
                continue  # its status was taken just now, or by a request of the same turn
            pid, status, used = os.wait4(entry.pid, os.WNOHANG)
            if pid == 0:
                self.unwatch(entry)  # a debugger has to take its status first; then comes SIGCHLD
                self.unseen.add(entry.pid)
                continue
            del self.by_pid[pid]
            entry.ended = time.monotonic_ns() // 1_000_000
            entry.count(used)
            ended.append((entry, status))
        if ended:
            self.finish_all(ended, childless=childless)

    def reap_all(self) -> None:
        """Take the status of every child that has ended, whichever thread has started it."""
        ended, childless = self.reap_any(_ENDED)
        self.finish_all(ended, childless=childless)

    def reap_any(self, options: int) -> tuple[list[tuple[Entry, int]], bool]:
        """Take the status of every child that the kernel finds.

        Says which leaders have ended, and whether there is no child at all any more.
        """
        ended: list[tuple[Entry, int]] = []
        while True:
            try:
                # Not taken yet: the mark of an orphan is gone with its status.
                found = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return ended, True
            if found is None:
                return ended, False
            entry = self.by_pid.pop(found.si_pid, None)
            if entry is None:
                self.reap_orphan(found.si_pid)
            else:
                entry.ended = time.monotonic_ns() // 1_000_000
                _, status, used = os.wait4(found.si_pid, 0)
                entry.count(used)
                ended.append((entry, status))

    def reap_orphan(self, pid: int) -> None:
        """Take the status of an orphan that has ended, and count its usage for its tree."""
        mark = orphan_kill.mark_of(pid)
        entry = None if mark is None else self.by_mark.get(mark)
        _, _, used = os.wait4(pid, 0)
        if entry is not None:
            entry.count(used)

    def finish_all(self, ended: list[tuple[Entry, int]], *, childless: bool) -> None:
        """Record the ends of children, after one look at the orphans that these may have left.

        What a process leaves behind is an orphan before its own status can be taken.  So while
        there is no orphan, which the kernel tells exactly, these have left nothing.
        ``childless``: there is no child, and thus no orphan, so they are not listed.
        """
        self.links.several |= len(ended) > 1
        orphans = None if not self.near else [] if childless else self.listed_orphans()
        left: dict[int | None, list[int]] = {}
        if orphans and any(entry.may_leave_orphans for entry, _ in ended):
            for pid in orphans:
                left.setdefault(orphan_kill.mark_of(pid), []).append(pid)
        for entry, status in ended:
            self.finish(entry, status, left.get(entry.mark, []), alone=orphans == [])

    def listed_orphans(self) -> list[int] | None:
        """The orphans that came to us; None: it cannot be told."""
        try:
            if self.listing < 0:
                self.listing = os.open(orphans_path(), os.O_RDONLY | os.O_CLOEXEC)
            return without(read_open(self.listing), self.by_pid)
        except OSError:  # a kernel without it, or no descriptor free
            return None

    def finish(self, entry: Entry, status: int, left: list[int], *, alone: bool) -> None:
        """Record the status of a child that has ended, end its sandbox, and tell the server.

        ``left``: the orphans of the child, which end with its sandbox or when it is ended.
        ``alone``: it has left none, of any kind.
        """
        if entry.line is not None:
            entry.close_line()
        known = self.entries.get(entry.child) is entry
        entry.status = status | (self.endings.exited(entry.child, entry.ended) if known else 0)
        entry.status |= self.groups.exceeded(entry.mark) | entry.exceeded
        # Of one without children the use is counted when it is reaped, if that is done here.
        if left and (not entry.sandboxed or any(map(children_of, left))):
            entry.note_living(*tree.used_below(left))
        if entry.killed or entry.sandboxed:
            self.groups.kill(entry.mark)
            if not self.near:
                tree.kill_afar(None, {entry.mark})
            elif left and entry.sandboxed:
                orphan_kill.end_near(entry.mark, self.by_pid, entry.count, looks=1)
            elif left:
                tree.kill(None, entry.mark, self.by_pid, entry.count)
        del self.by_mark[entry.mark]
        entry.usage = usage = entry.total()
        self.unseen.discard(entry.pid)
        # The server does not want to hear of one that was forgotten.
        if self.lease.holder is not None and known:
            exited = messages.Exited.packed(entry.child, entry.status, *usage, alone)
            message: messages.Outgoing = (messages.EXITED, 0, exited, [])
            self.links.gather(self.lease.holder, message, _impossible)
        if entry.pidfd >= 0:
            self.unwatch(entry)


def _impossible(error: OSError) -> None:
    """A message without descriptors needs no copies, so it can always wait."""


def _pidfd(entry: Entry) -> int:
    """A pidfd of a child that is not reaped, so that its number is still its own."""
    pidfd = os.pidfd_open(entry.pid)
    if own_fds.only_reserve_left(pidfd):
        os.close(pidfd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return pidfd
