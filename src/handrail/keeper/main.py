"""The keeper's loop: spawn, hold, reap, kill, hand over.

How it works.  One thread, one poll over: the link of the server that holds the lease, links
that ask for it, the listening socket in the state directory, and a pipe that the kernel's
SIGCHLD writes to.  Everything a child leaves behind (its descriptors, its exit status) stays
in the table until the server says FORGET, so that the next server finds it.

The end.  An embedded keeper (no socket to be found by) ends with its owner and takes the
children along.  One with a socket outlives its server and waits ``orphan_ttl`` seconds for
the next; then it ends what is left.  STOP ends everything at once.  ``fence.py`` is how one
server follows another, ``handover.py`` how one keeper does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque

from handrail.keeper import (
    descriptors,
    fence,
    groups,
    handover,
    limits,
    link,
    memory,
    privacy,
    spawn,
    tree,
)
from handrail.keeper.lease import Lease

_PR_SET_CHILD_SUBREAPER = 36
#: What RELEASE closes; everything else we hold of a child is its retained output.
_STREAMS = {b"stdout", b"stderr", b"stdin", b"pty", b"staging"}
#: How long STOP waits for what it killed; a process in uninterruptible sleep outlasts it.
_STOP_SECONDS = 2.0


_NOTHING: dict[bytes, int] = {}


class Entry:
    """One child and what we hold of it."""

    __slots__ = ("child", "fds", "killed", "mark", "note", "pid", "status", "usage")

    def __init__(
        self, child: bytes, pid: int, mark: int, fds: dict[bytes, int], note: bytes = b""
    ) -> None:
        self.child = child
        self.pid = pid
        self.mark = mark
        self.fds = fds
        self.status: int | None = None
        self.usage = b"0 0 0"  # user ms, system ms, max RSS; one object, for there may be many
        self.killed = False
        self.note = note


class Link:
    """One connected server, and what it has not taken yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.waiting: deque[tuple[int, int, list[bytes], list[int]]] = deque()


class Keeper:
    """The table of children and the links to servers."""

    def __init__(self, orphan_ttl: float) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.by_pid: dict[int, Entry] = {}
        self.links: dict[int, Link] = {}
        self.lease = Lease()
        self.holder: fence.Holder | None = None  # of the lease, or the last that did not let go
        self.claims: list[fence.Claim] = []
        self.notes: dict[bytes, bytes] = {}
        self.lost_at: float | None = None
        self.listener: socket.socket | None = None
        self.poll = select.poll()
        self.limits = spawn.Limits()
        self.groups = groups.Groups()
        self.home = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.mark = int.from_bytes(os.urandom(4), "big") << 24
        self.orphan_ttl = orphan_ttl
        self.forgotten = 0  # since memory was given back
        self.deadline: float | None = None
        self.running = True

    # --- links ---------------------------------------------------------------------------

    def add(self, sock: socket.socket) -> None:
        self.links[sock.fileno()] = Link(sock)
        self.poll.register(sock.fileno(), select.POLLIN)

    def lost(self, fd: int) -> None:
        gone = self.links.pop(fd)
        self.poll.unregister(fd)
        for _, _, _, fds in gone.waiting:
            for passed in fds:
                os.close(passed)
        gone.sock.close()
        self.claims = [claim for claim in self.claims if claim.fd != fd]
        if self.lease.release(fd):
            self.lost_at = time.monotonic()
            self.settle_claims()
        # Also when it had never said hello: an owner may die before it does.
        if self.lease.holder is None:
            if self.listener is None:
                self.stop()
            elif self.deadline is None:
                self.deadline = time.monotonic() + self.orphan_ttl

    def say(
        self, fd: int, op: int, serial: int, fields: list[bytes], fds: list[int] | None = None
    ) -> None:
        """Send now, or when the server takes it: a server that sleeps never stops us.

        Raises OSError when there is no descriptor free for a copy that has to wait.
        """
        to = self.links.get(fd)
        if to is None:
            return
        if not to.waiting:
            try:
                link.send(to.sock, op, serial, fields, fds or ())
                return
            except ConnectionError:
                return  # the end of the link is seen by the poll
            except OSError:  # full, or too many descriptors are on their way
                self.poll.modify(fd, select.POLLIN | select.POLLOUT)
        # Copies: what we hold may be dropped before the server comes back.
        to.waiting.append((op, serial, fields, descriptors.copies(fds or ())))

    def flush(self, fd: int) -> None:
        to = self.links[fd]
        try:
            while to.waiting:
                op, serial, fields, fds = to.waiting[0]
                link.send(to.sock, op, serial, fields, fds)
                to.waiting.popleft()
                for passed in fds:
                    os.close(passed)
        except ConnectionError:
            pass
        except OSError:
            return
        self.poll.modify(fd, select.POLLIN)

    # --- what a server asks ----------------------------------------------------------------

    def hear(self, fd: int) -> None:
        """Take a few messages of one link, then let the others have their turn."""
        sock = self.links[fd].sock
        for _ in range(8):
            if not self.running or fd not in self.links:
                return
            try:
                message = link.receive(sock)
            except BlockingIOError:
                return
            except OSError:
                message = None
            if message is None:
                self.lost(fd)
                return
            try:
                self.obey(fd, message)
            except (OSError, ValueError, IndexError):
                # Not what a server of ours says, or no way to answer it: that is the end of
                # this link, and of nothing else.
                if fd in self.links:
                    self.lost(fd)
            finally:
                message.close()

    def obey(self, fd: int, message: link.Message) -> None:
        op, serial, fields = message.op, message.serial, message.fields
        if op == link.HELLO:
            self.greet(fd, serial, fields)
            return
        if op == link.WHO:
            self.say(fd, link.DONE, serial, [b"%d" % self.lease.pid])
        elif op == link.REEXEC and self.lease.holder in (fd, None):
            reason = handover.execute(self, fields[0], fields[1], (fd, serial))
            self.say(fd, link.REFUSED, serial, [reason.encode()])
        elif fd != self.lease.holder:
            self.say(fd, link.REFUSED, serial, [b"say hello first"])
        elif message.cut:
            if serial:
                self.say(fd, link.FAILED, serial, [b"%d" % errno.EMFILE])
        elif op == link.SPAWN:
            self.spawn(fd, message)
        elif op == link.SIGNAL:
            reached = self.signal(fields[0], int(fields[1]), fields[2])
            self.say(fd, link.DONE, serial, [b"%d" % reached])
        elif op == link.KEEP:
            entry = self.entries.get(fields[0])
            if (
                entry is not None
                and message.fds
                and not descriptors.only_reserve_left(message.fds[-1])
            ):
                self.hold(entry, fields[1], message.fds.pop())
        elif op == link.DROP:
            entry = self.entries.get(fields[0])
            if entry is not None and fields[1] in entry.fds:
                os.close(entry.fds.pop(fields[1]))
        elif op == link.RELEASE:
            for child in fields:
                self.release(child)
        elif op == link.FORGET:
            for child in fields:
                self.forget(child)
            self.forgotten += len(fields)
            if self.forgotten >= (1024 if self.entries else memory.MANY):
                self.forgotten = 0
                self.entries = dict(self.entries)  # a table that was large stays so, when emptied
                memory.give_back()
        elif op == link.LIST:
            for key, value in self.notes.items():
                self.say(fd, link.NOTED, serial, [key, value])
            for entry in self.entries.values():
                self.describe(fd, serial, entry)
            self.say(fd, link.DONE, serial, [b"%d" % len(self.entries)])
        elif op == link.ABILITIES:
            names = sorted(limits.RESOURCES.keys() | self.groups.limits.keys())
            self.say(fd, link.DONE, serial, [self.groups.rung, b" ".join(names)])
        elif op == link.ORPHANS:
            self.say(fd, link.DONE, serial, self.orphans())
        elif op == link.NOTE:
            if len(fields) > 1:
                self.notes[fields[0]] = fields[1]
            else:
                self.notes.pop(fields[0], None)
        elif op == link.ALIVE:
            self.refuse_claims()
        elif op == link.BYE:
            self.forget_holder()
        elif op == link.ADOPT:
            self.adopt(fields, message.fds)
        elif op == link.STOP:
            self.say(fd, link.DONE, serial, [])
            self.stop()

    def greet(self, fd: int, serial: int, fields: list[bytes]) -> None:
        pid = int(fields[1])
        if int(fields[0]) != link.VERSION:
            reason: str | None = f"{link.OTHER_VERSION.decode()}{link.VERSION} of the link"
        elif self.lease.holder not in (fd, None) and b"claim" in fields[2:]:
            self.claim(fd, serial, fields)
            return
        else:
            reason = self.lease.ask(fd, pid)
        if reason is None:
            reason = self.follow(fd)
        if reason is not None:
            self.say(fd, link.REFUSED, serial, [reason.encode()])
            return
        self.deadline = None
        lost = b"-" if self.lost_at is None else repr(self.lost_at).encode()
        version, pid_here = b"%d" % link.VERSION, b"%d" % os.getpid()
        base = b"%d" % (self.mark >> 24 << 24)
        self.say(fd, link.WELCOME, serial, [version, pid_here, lost, base])

    # --- one server after another ----------------------------------------------------------

    def follow(self, fd: int) -> str | None:
        """Make sure of the holder before; the reason when that fails."""
        now = fence.Holder.behind(self.links[fd].sock)
        before = self.holder
        if before is not None and before.pid != now.pid and not before.fence(fence.END_SECONDS):
            now.close()
            self.lease.release(fd)
            return f"process {before.pid}, the server before, cannot be ended; try again later"
        self.forget_holder()
        self.holder = now
        return None

    def forget_holder(self) -> None:
        if self.holder is not None:
            self.holder.close()
            self.holder = None

    def claim(self, fd: int, serial: int, fields: list[bytes]) -> None:
        """Somebody wants the lease of another: end that one if it is stuck."""
        holder = self.lease.holder
        assert holder is not None  # noqa: S101 (asked before)
        if self.holder is not None and self.holder.stopped and self.holder.fence(0.0):
            self.claims.append(fence.Claim(fd, serial, fields))
            self.lost(holder)
            return
        self.claims.append(fence.Claim(fd, serial, fields))
        self.say(holder, link.ASKED, 0, [])

    def refuse_claims(self) -> None:
        claims, self.claims = self.claims, []
        for claim in claims:
            reason = self.lease.ask(claim.fd, 0) or "ask again"
            self.say(claim.fd, link.REFUSED, claim.serial, [reason.encode()])

    def settle_claims(self) -> None:
        """The lease is free: the first who waits has it, the others are told so."""
        claims, self.claims = self.claims, []
        for claim in claims:
            if claim.fd in self.links:
                self.greet(claim.fd, claim.serial, [*claim.fields[:2]])

    def fence_silent(self) -> None:
        """The time of a holder that was asked is over."""
        if self.claims and time.monotonic() >= self.claims[0].deadline:
            holder = self.lease.holder
            if holder is None:
                self.settle_claims()
            elif self.holder is None or self.holder.fence(0.0):
                self.lost(holder)
            else:
                self.refuse_claims()

    def spawn(self, fd: int, message: link.Message) -> None:
        child, mode, rows, cols, passed, program, argc = message.fields[:7]
        argc, _, note = argc.partition(b" ")
        count = int(argc)
        argv = message.fields[7 : 7 + count]
        env = {}
        for pair in message.fields[7 + count :]:
            name, _, value = pair.partition(b"=")
            env[name] = value
        if child in self.entries:
            self.say(fd, link.FAILED, message.serial, [b"%d" % errno.EEXIST])
            return
        self.mark += 1
        mode, *words = mode.split(b" ")
        try:
            wanted = limits.read(words)
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
            self.say(fd, link.FAILED, message.serial, [b"%d" % (number or errno.EINVAL)])
            return
        entry = Entry(
            child, started.pid, self.mark, dict(zip(started.names, started.fds, strict=True)), note
        )
        self.entries[child] = entry
        self.by_pid[started.pid] = entry
        try:
            self.hand_over(fd, message.serial, entry, started.fds)
        except OSError as error:
            # Nobody would ever know of it.
            self.signal(child, signal.SIGKILL, link.SCOPE_TREE)
            self.forget(child)
            self.say(fd, link.FAILED, message.serial, [b"%d" % (error.errno or 0)])

    def hand_over(self, fd: int, serial: int, entry: Entry, fds: list[int]) -> None:
        # Not reaped yet, so the number is still this child's.
        pidfd = os.pidfd_open(entry.pid)
        try:
            if descriptors.only_reserve_left(pidfd):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            fields = [entry.child, b"%d" % entry.pid]
            self.say(fd, link.SPAWNED, serial, fields, [*fds, pidfd])
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
            self.say(fd, link.CHILD, serial, fields, fds)
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def adopt(self, fields: list[bytes], fds: list[int]) -> None:
        """Hold what a server has of a child whose keeper has died; we are not its parent."""
        child, pid, status, note, *names = fields
        if child not in self.entries and len(names) == len(fds):
            entry = Entry(child, int(pid), 0, dict(zip(names, fds, strict=True)), note)
            entry.status = None if status == b"-" else int(status)
            self.entries[child] = entry
            fds.clear()  # ours now

    def signal(self, child: bytes, number: int, scope: bytes) -> int:
        entry = self.entries.get(child)
        if entry is None:
            return 0
        leader = entry.pid if entry.status is None else None
        lone = entry.fds.get(b"lone")
        if lone is not None and not fence.alive(lone):
            return 0  # not our child, and its number may be somebody else's by now
        if scope == link.SCOPE_TREE:
            leaders = self.by_pid.keys() - {entry.pid}
            if number == signal.SIGKILL:
                entry.killed = True
                reached = self.groups.kill(entry.mark)
                # And who has left the group, as one with the right to may.
                return max(reached, tree.kill(leader, entry.mark, set(leaders)))
            return tree.send(leader, entry.mark, set(leaders), number)
        if leader is None:
            return 0
        try:
            if scope == link.SCOPE_GROUP:
                os.killpg(leader, number)
            else:
                os.kill(leader, number)
        except OSError:
            return 0
        return 1

    def orphans(self) -> list[bytes]:
        self.reap()  # what is dead is nobody's orphan
        found = tree.orphans_by_mark(set(self.by_pid))
        fields = []
        for entry in self.entries.values():
            if entry.mark in found:
                fields += [entry.child, b"%d" % found[entry.mark]]
        return fields

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
            for held in entry.fds.values():
                os.close(held)
            entry.fds.clear()
            self.groups.forget(entry.mark)

    # --- children ------------------------------------------------------------------------

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
            entry.status = status
            entry.usage = b"%d %d %d" % (
                usage.ru_utime * 1000,
                usage.ru_stime * 1000,
                usage.ru_maxrss * 1024,
            )
            if self.groups.ran_out(entry.mark):
                entry.status |= groups.OUT_OF_MEMORY
            if entry.killed:
                self.groups.kill(entry.mark)
                tree.kill(None, entry.mark, set(self.by_pid))
            # Of one that was forgotten nobody wants to hear.
            if self.lease.holder is not None and self.entries.get(entry.child) is entry:
                self.say(
                    self.lease.holder,
                    link.EXITED,
                    0,
                    [entry.child, b"%d" % entry.status, *entry.usage.split()],
                )

    def stop(self) -> None:
        """End every family and then ourselves."""
        for entry in list(self.entries.values()):
            self.signal(entry.child, signal.SIGKILL, link.SCOPE_TREE)
        # What is left below us belongs to families that were forgotten meanwhile.
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            self.reap()
            left = tree.children_of(os.getpid())
            if not left:
                break
            for pid in left:
                tree.kill(pid, 0, set(left))
            time.sleep(0.001)
        self.groups.close()
        self.running = False

    # --- the loop --------------------------------------------------------------------------

    def run(self) -> None:
        wake, wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, _noted)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        self.poll.register(wake, select.POLLIN)
        if self.listener is not None:
            self.poll.register(self.listener.fileno(), select.POLLIN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a keeper before us may have blocked some
        self.limits.raise_own()
        privacy.become_private()
        self.reap()
        while self.running:
            for fd, events in self.poll.poll(self.patience()):
                if fd == wake:
                    if signal.SIGTERM in os.read(wake, 4096):
                        self.stop()
                    self.reap()
                elif self.listener is not None and fd == self.listener.fileno():
                    self.accept()
                elif fd in self.links:
                    if events & select.POLLOUT:
                        self.flush(fd)
                    if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                        self.hear(fd)
            self.fence_silent()
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self.stop()

    def patience(self) -> float | None:
        """Milliseconds until something is due without anybody asking."""
        due = [claim.deadline for claim in self.claims[:1]]
        if self.deadline is not None:
            due.append(self.deadline)
        return max(0.0, min(due) - time.monotonic()) * 1000 if due else None

    def accept(self) -> None:
        assert self.listener is not None  # noqa: S101 (the poll only names it when there is one)
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
            sock.close()
            return
        self.add(sock)


def _noted(number: int, frame: object) -> None:
    """The wake-up pipe has the signal's number; there is nothing to do here."""


def _passed(numbers: bytes, fds: list[int]) -> dict[int, int]:
    wanted = [int(number) for number in numbers.split(b",")] if numbers else []
    return dict(zip(wanted, fds, strict=True))


def become_subreaper() -> None:
    """Orphans of our children come to us.  Without it they are only lost from sight."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(argv: list[str]) -> None:
    """``keeper LINK LISTENER ORPHAN_TTL``: descriptors 3.. of the first two, or - for none.

    ``--check FORM`` says by its exit code whether that form of a handover can be read, and
    ``--state FD`` takes one over.
    """
    if argv[0] == "--check":
        sys.exit(argv[1].encode() != handover.FORM)
    os.chdir("/")
    if argv[0] == "--state":
        from handrail.keeper import takeover

        keeper = takeover.revive(int(argv[1]))
        become_subreaper()
        keeper.run()
        return
    first, listener, orphan_ttl = argv
    descriptors.close_inherited({int(fd) for fd in (first, listener) if fd != "-"})
    keeper = Keeper(float(orphan_ttl))
    become_subreaper()
    if listener != "-":
        keeper.listener = socket.socket(fileno=int(listener))
        keeper.listener.setblocking(False)
        os.set_inheritable(int(listener), False)
    os.set_inheritable(int(first), False)
    keeper.add(socket.socket(fileno=int(first)))
    keeper.run()
