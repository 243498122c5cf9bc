"""The children: one entry each, with everything we hold of it.

What a child leaves behind (its descriptors, its exit status) stays in the table until the
server says FORGET, so that the next server finds it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
import time
from collections.abc import Callable

from handrail.keeper import cgroups, fence, limits, malloc_trim, messages, own_fds, spawn, tree
from handrail.keeper.deadlines import CAUSE_ASKED, CAUSE_TIME, Deadline, Deadlines
from handrail.keeper.lease import Lease

#: What RELEASE closes; everything else we hold of a child is its retained output.
_STREAMS = {b"stdout", b"stderr", b"stdin", b"pty", b"staging", spawn.LISTENER_NAME}

_NOTHING: dict[bytes, int] = {}

#: To which link, what, to which question, with which fields and descriptors.
Say = Callable[..., None]


class Entry:
    """One child and what we hold of it."""

    __slots__ = (
        "child",
        "ended",
        "far",
        "fds",
        "inside",
        "killed",
        "mark",
        "note",
        "pid",
        "status",
        "usage",
    )

    def __init__(
        self, child: bytes, pid: int, mark: int, fds: dict[bytes, int], note: bytes = b""
    ) -> None:
        self.child = child
        self.pid = pid
        self.mark = mark
        self.fds = fds
        self.status: int | None = None
        self.usage = b"0 0 0"  # user ms, system ms, max RSS; one object, for there may be many
        self.ended = 0  # when, in monotonic milliseconds
        self.killed = False
        self.far = False  # of a keeper before us, so not below us
        self.inside = False  # a sandbox: it ends with the leader, which stays outside
        self.note = note


class Children:
    """All of them, by the number their server gave them and by their own."""

    def __init__(self, say: Say, lease: Lease, poll: select.poll) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.by_pid: dict[int, Entry] = {}
        self.lone: dict[int, Entry] = {}  # by their descriptors, those of a keeper before us
        self.say = say
        self.lease = lease
        self.poll = poll
        self.limits = spawn.Limits()
        self.groups = cgroups.Cgroups()
        self.home = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.mark = int.from_bytes(os.urandom(4), "big") << 24
        self.endings = Deadlines(self.signal_ending)
        self.forgotten = 0  # since memory was given back
        self.near = True  # orphans come to us; else they are looked for on the whole machine

    def spawn(self, fd: int, message: messages.Message) -> None:
        child, mode, rows, cols, passed, program, argc = message.fields[:7]
        argc, _, note = argc.partition(b" ")
        count = int(argc)
        argv = message.fields[7 : 7 + count]
        env = {}
        for pair in message.fields[7 + count :]:
            name, _, value = pair.partition(b"=")
            env[name] = value
        if child in self.entries:
            self.say(fd, messages.FAILED, message.serial, [b"%d" % errno.EEXIST])
            return
        self.mark += 1
        mode, *words = mode.split(b" ")
        try:
            wanted = limits.read(words)
            end_at, grace = wanted.pop(b"end", None), wanted.pop(b"grace", 0)
            inside = wanted.pop(b"inside", 0)
            started = spawn.start(
                mode,
                (int(rows), int(cols)),
                self.mark,
                program,
                argv,
                env,
                message.fds[0],
                _passed(passed, message.fds[1:]),
                self.home,
                self.limits,
                self.groups.prepare(self.mark, wanted),
                limits.of_process(wanted) if wanted else {},
            )
        except (OSError, ValueError, struct.error) as error:
            # ValueError: what Python itself refuses, such as an empty first argument.
            number = error.errno if isinstance(error, OSError) else None
            self.groups.forget(self.mark)
            self.say(fd, messages.FAILED, message.serial, [b"%d" % (number or errno.EINVAL)])
            return
        entry = Entry(
            child, started.pid, self.mark, dict(zip(started.names, started.fds, strict=True)), note
        )
        entry.inside = bool(inside)
        self.entries[child] = entry
        self.by_pid[started.pid] = entry
        if end_at is not None:
            self.end_by(entry, CAUSE_TIME, end_at, grace)
        try:
            self.hand_over(fd, message.serial, entry, started.fds)
        except OSError as error:
            # Nobody would ever know of it.
            self.signal(child, signal.SIGKILL, messages.SCOPE_TREE)
            self.forget(child)
            self.say(fd, messages.FAILED, message.serial, [b"%d" % (error.errno or 0)])

    def hand_over(self, fd: int, serial: int, entry: Entry, fds: list[int]) -> None:
        # Not reaped yet, so the number is still this child's.
        pidfd = os.pidfd_open(entry.pid)
        try:
            if own_fds.only_reserve_left(pidfd):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            fields = [entry.child, b"%d" % entry.pid, b"%d" % entry.mark]
            self.say(fd, messages.SPAWNED, serial, fields, [*fds, pidfd])
        finally:
            os.close(pidfd)

    def hold(self, entry: Entry, name: bytes, fd: int) -> None:
        old = entry.fds.get(name)
        if old is not None:
            os.close(old)
        if entry.fds is _NOTHING:
            entry.fds = {}
        entry.fds[name] = fd

    def describe(self, fd: int, serial: int, entry: Entry) -> None:
        status = b"-" if entry.status is None else b"%d" % entry.status
        fields = [entry.child, b"%d" % entry.pid, status, *entry.usage.split(), *entry.fds]
        fds = list(entry.fds.values())
        pidfd = -1
        if entry.status is None and entry.pid in self.by_pid:
            pidfd = os.pidfd_open(entry.pid)  # not reaped yet, so the number is still its own
            fields.append(b"pidfd")
            fds.append(pidfd)
        if entry.note:
            fields.append(b"=" + entry.note)
        try:
            self.say(fd, messages.CHILD, serial, fields, fds)
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def adopt(self, fields: list[bytes], fds: list[int]) -> None:
        """Hold what a server has of a child whose keeper has died; we are not its parent."""
        child, pid, mark, inside, status, usage, ended, note, *names = fields
        if child not in self.entries and len(names) == len(fds):
            entry = Entry(child, int(pid), int(mark), dict(zip(names, fds, strict=True)), note)
            entry.usage, entry.ended = usage, int(ended)
            entry.far, entry.inside = True, inside == b"1"
            entry.status = None if status == b"-" else int(status)
            self.entries[child] = entry
            fds.clear()  # ours now
            self.watch_lone(entry)

    def watch_lone(self, entry: Entry) -> None:
        """Nobody tells us of the end of one that is not our child, so we look for it."""
        lone = entry.fds.get(b"lone")
        if entry.far and lone is not None and entry.status is None and not entry.ended:
            self.lone[lone] = entry
            self.poll.register(lone, select.POLLIN)

    def lone_ended(self, fd: int) -> None:
        """Such a one has ended; its status is for the server to find out."""
        entry = self.lone.pop(fd)
        self.poll.unregister(fd)
        entry.ended = time.monotonic_ns() // 1_000_000
        self.endings.exited(entry.child, entry.ended)
        if entry.killed or entry.inside:
            tree.kill_afar(None, {entry.mark})

    def end_by(self, entry: Entry, cause: bytes, at: int, grace: int, *, done: int = -1) -> None:
        """From ``at`` on it is asked to end, and after that grace killed; milliseconds.

        ``done``: up to that time a keeper before us has seen to it.
        """
        terminal = b"pty" in entry.fds and entry.status is None
        ending = Deadline.plan(cause, at, grace, terminal=terminal)
        if done >= 0:
            ending.go_on(done)
        self.endings.set(entry.child, ending)

    def due(self, fields: list[bytes]) -> None:
        """A server wants a child ended."""
        child, cause, at, grace, done = fields
        entry = self.entries.get(child)
        if entry is not None:
            self.end_by(entry, cause, int(at), int(grace), done=int(done))

    def signal_ending(self, child: bytes, number: int, at: int) -> bool:
        """One step of an end; False when somebody is to come whom it did not reach."""
        entry = self.entries.get(child)
        reached = self.signal(child, number, messages.SCOPE_TREE)
        if entry is not None and entry.inside and entry.status is None and not reached:
            return False
        if self.lease.holder is not None:
            self.say(self.lease.holder, messages.BEGUN, 0, [child, b"%d" % at])
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
        if scope == messages.SCOPE_TREE and entry.inside and number != signal.SIGKILL:
            return 0 if leader is None else tree.send_inside(leader, number)
        if scope == messages.SCOPE_TREE and (entry.far or not self.near):
            if number == signal.SIGKILL:
                return tree.kill_afar(leader, {entry.mark})
            return tree.send_afar(leader, {entry.mark}, number)
        if scope == messages.SCOPE_TREE:
            leaders = self.by_pid.keys() - {entry.pid}
            if number == signal.SIGKILL:
                reached = self.groups.kill(entry.mark)
                # And who has left the group, as one with the right to may.
                return max(reached, tree.kill(leader, entry.mark, set(leaders)))
            return tree.send(leader, entry.mark, set(leaders), number)
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

    def leader(self, entry: Entry) -> int | None:
        """The pid of one that lives."""
        if entry.status is not None:
            return None
        lone = entry.fds.get(b"lone")
        if entry.far and (lone is None or not fence.alive(lone)):
            return None  # not our child, and its number may be somebody else's by now
        return entry.pid

    def orphans(self) -> list[bytes]:
        self.reap()  # what is dead is nobody's orphan
        found = tree.orphans_by_mark(set(self.by_pid))
        entries = self.entries.values()
        far = {entry.mark: self.leader(entry) for entry in entries if entry.far or not self.near}
        if far:
            found |= tree.orphans_afar(far)
        fields = []
        for entry in self.entries.values():
            if entry.mark in found:
                fields += [entry.child, b"%d" % found[entry.mark]]
        return fields

    def families(self) -> bytes:
        """Each child with the mark of its family, which a server needs should we be killed, when
        it ended, whether it was to be killed (1) or asked to end (2), and of an end by the clock
        when it is due, its grace, and up to which time it was seen to."""
        words = []
        for entry in self.entries.values():
            ending = self.endings.get(entry.child)
            fate, clock = int(entry.killed), b"0 0 -1"
            if ending is not None:
                fate |= (ending.cause == CAUSE_ASKED) << 1
                clock = b"%d %d %d" % (ending.at, ending.grace, ending.done)
            words.append(b"%b %d %d %d %b" % (entry.child, entry.mark, entry.ended, fate, clock))
        return b" ".join(words)

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
            self.endings.drop(child)
            self.groups.forget(entry.mark)

    def forget_all(self, children: list[bytes]) -> None:
        """Forget many, and give back what they took."""
        for child in children:
            self.forget(child)
        self.forgotten += len(children)
        if self.forgotten >= (1024 if self.entries else malloc_trim.MANY):
            self.forgotten = 0
            self.entries = dict(self.entries)  # a table that was large stays so, when emptied
            malloc_trim.give_back()

    def reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            entry = self.by_pid.pop(pid, None)
            if entry is None:
                continue  # an orphan that came to us
            entry.ended = time.monotonic_ns() // 1_000_000
            known = self.entries.get(entry.child) is entry
            entry.status = status | (self.endings.exited(entry.child, entry.ended) if known else 0)
            entry.usage = b"%d %d %d" % (
                usage.ru_utime * 1000,
                usage.ru_stime * 1000,
                usage.ru_maxrss * 1024,
            )
            if self.groups.ran_out(entry.mark):
                entry.status |= cgroups.OUT_OF_MEMORY
            if entry.killed or entry.inside:
                self.groups.kill(entry.mark)
                if self.near:
                    tree.kill(None, entry.mark, set(self.by_pid))
                else:
                    tree.kill_afar(None, {entry.mark})
            # Of one that was forgotten nobody wants to hear.
            if self.lease.holder is not None and known:
                self.say(
                    self.lease.holder,
                    messages.EXITED,
                    0,
                    [entry.child, b"%d" % entry.status, *entry.usage.split()],
                )


def _passed(numbers: bytes, fds: list[int]) -> dict[int, int]:
    wanted = [int(number) for number in numbers.split(b",")] if numbers else []
    return dict(zip(wanted, fds, strict=True))
