"""The keeper's loop: spawn, hold, reap, kill, hand over.

How it works.  One thread, one poll over: the link of the server that holds the lease, links
that ask for it, the listening socket in the state directory, and a pipe that the kernel's
SIGCHLD writes to.  ``children.py`` is the table of what we hold, ``server_links.py`` the servers.

The end.  An embedded keeper (no socket to be found by) ends with its owner and takes the
children along.  One with a socket outlives its server and waits ``orphan_ttl`` seconds for
the next; then it ends what is left.  STOP ends everything at once.  ``server_handoff.py`` is how
one server follows another, ``reexec_save.py`` how one keeper does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import sys
import time

from handrail import proof
from handrail.keeper import hardening, limits, messages, own_fds, reexec_save, tree
from handrail.keeper.children import Children
from handrail.keeper.lease import Lease
from handrail.keeper.server_handoff import ServerHandoff
from handrail.keeper.server_links import ServerLinks

_PR_SET_CHILD_SUBREAPER = 36
#: How long STOP waits for what it killed; a process in uninterruptible sleep outlasts it.
_STOP_SECONDS = 2.0
#: Servers that wait to be heard.
_BACKLOG = 16
#: Without anything to do.
_LONGEST_SECONDS = 3600.0


class Keeper:
    """The children, the links to servers, and the notes that servers left for the next."""

    def __init__(self, orphan_ttl: float) -> None:
        self.poll = select.poll()
        self.links = ServerLinks(self.poll)
        self.lease = Lease()
        self.children = Children(self.links.say, self.lease, self.poll)
        self.succession = ServerHandoff(self.links, self.lease, self.children, self.lost)
        self.notes: dict[bytes, bytes] = {}
        self.listener: socket.socket | None = None
        self.orphan_ttl = orphan_ttl
        #: What a server that comes by the listener must know; none: nothing is asked for.
        self.secret = b""
        self.running = True

    def lost(self, fd: int) -> None:
        self.links.remove(fd)
        self.succession.gone(fd)
        # Also when it had never said hello: an owner may die before it does.
        if self.lease.holder is None:
            if self.listener is None:
                self.stop()
            elif self.succession.deadline is None:
                self.succession.deadline = time.monotonic() + self.orphan_ttl

    def hear(self, fd: int) -> None:
        """Handle a few messages of one link, then those of the others."""
        sock = self.links[fd].sock
        for _ in range(8):
            if not self.running or fd not in self.links:
                return
            try:
                message = messages.receive(sock)
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

    def obey(self, fd: int, message: messages.Message) -> None:
        op, serial, fields = message.op, message.serial, message.fields
        if op == messages.PROVE and self.secret:
            self.prove(fd, serial, fields)
            return
        if not self.links[fd].proven:
            pid = os.getpid()
            unproven = (
                "this keeper serves only servers that prove to know its secret: put the file"
                " `secret` back beside its socket, or end it and everything it runs with"
                f" `kill -KILL {pid}`"
            )
            self.links.say(fd, messages.REFUSED, serial, [unproven.encode()])
            return
        if op == messages.HELLO:
            self.succession.greet(fd, serial, fields)
            return
        if op == messages.WHO:
            self.count(fd, serial, self.lease.pid)
        elif op == messages.REEXEC and self.lease.holder in (fd, None):
            reason = reexec_save.execute(self, messages.Reexec.unpack(fields), (fd, serial))
            self.links.say(fd, messages.REFUSED, serial, [reason.encode()])
        elif fd != self.lease.holder:
            self.links.say(fd, messages.REFUSED, serial, [b"say hello first"])
        elif message.cut:
            if serial:
                self.children.failed(fd, serial, errno.EMFILE)
        elif op == messages.SPAWN:
            self.children.spawn(fd, message)
        elif op == messages.SIGNAL:
            wanted = messages.Signal.unpack(fields)
            reached = self.children.signal(wanted.child, wanted.number, wanted.scope)
            self.count(fd, serial, reached)
        elif op == messages.DUE:
            self.children.due(messages.Due.unpack(fields))
        elif op == messages.KEEP:
            self.children.keep(messages.Copy.unpack(fields), message.fds)
        elif op == messages.DROP:
            self.children.drop(messages.Copy.unpack(fields))
        elif op == messages.RELEASE:
            for child in fields:
                self.children.release(child)
        elif op == messages.FORGET:
            self.children.forget_all(fields)
        elif op == messages.LIST:
            for note in self.notes.items():
                self.links.say(fd, messages.NOTED, serial, messages.Note(*note).pack())
            for entry in self.children.entries.values():
                self.children.describe(fd, serial, entry)
            self.count(fd, serial, len(self.children.entries))
        elif op == messages.SECRET:
            self.secret = fields[0]
        elif op == messages.ABILITIES:
            names = sorted(limits.RESOURCES.keys() | self.children.tree_limits)
            abilities = messages.Abilities(self.children.groups.rung, names)
            self.links.say(fd, messages.DONE, serial, abilities.pack())
        elif op == messages.ORPHANS:
            self.links.say(fd, messages.DONE, serial, self.children.orphans().pack())
        elif op == messages.NOTE:
            left = messages.Note.unpack(fields)
            if left.keep:
                self.notes[left.key] = left.value
            else:
                self.notes.pop(left.key, None)
        elif op == messages.ALIVE:
            self.succession.refuse_claims()
        elif op == messages.BYE:
            self.succession.forget_holder()
        elif op == messages.ADOPT:
            self.children.adopt(messages.ChildState.unpack(fields), message.fds)
        elif op == messages.STOP:
            self.links.say(fd, messages.DONE, serial, [])
            self.stop()

    def count(self, fd: int, serial: int, number: int) -> None:
        """Answer a question with a number."""
        self.links.say(fd, messages.DONE, serial, messages.Count(number).pack())

    def stop(self) -> None:
        """End every tree and then the keeper."""
        for entry in list(self.children.entries.values()):
            self.children.signal(entry.child, signal.SIGKILL, messages.SCOPE_TREE)
        # What is left below us belongs to families that were forgotten meanwhile.
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            self.children.reap()
            left = tree.children_of(os.getpid())
            if not left:
                break
            for pid in left:
                tree.kill(pid, 0, set(left))
            time.sleep(0.001)
        self.children.groups.close()
        self.running = False

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
        self.children.limits.set_own(self.children.mark)
        hardening.become_private()
        self.children.reap()
        while self.running:
            for fd, events in self.poll.poll(self.patience()):
                if fd == wake:
                    if signal.SIGTERM in os.read(wake, 4096):
                        self.stop()
                    self.children.reap()
                elif self.listener is not None and fd == self.listener.fileno():
                    self.accept()
                elif fd in self.children.lone:
                    self.children.lone_ended(fd)
                elif fd in self.links:
                    if events & select.POLLOUT:
                        self.links.flush(fd)
                    if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                        self.hear(fd)
            self.succession.fence_silent()
            now = time.monotonic_ns() // 1_000_000
            self.children.endings.run(now)
            self.children.watcher.run(now)
            if (
                self.succession.deadline is not None
                and time.monotonic() >= self.succession.deadline
            ):
                self.stop()

    def patience(self) -> float | None:
        """Milliseconds until something is due without a request."""
        due = [claim.deadline for claim in self.succession.claims[:1]]
        if self.succession.deadline is not None:
            due.append(self.succession.deadline)
        if self.children.endings.next is not None:
            due.append(self.children.endings.next / 1000)
        if self.children.watcher.next is not None:
            due.append(self.children.watcher.next / 1000)
        if not due:
            return None
        # Rather a millisecond late than early and in vain; poll takes no more than 24 days.
        return max(0.0, min(min(due) - time.monotonic(), _LONGEST_SECONDS)) * 1000 + 1

    def accept(self) -> None:
        assert self.listener is not None  # noqa: S101 (the poll only names it when there is one)
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        pid, uid = proof.peer(sock)
        if uid != os.getuid() or pid == 0:  # 0: in no pid namespace that we see
            sock.close()
            return
        self.links.add(sock, proven=not self.secret)

    def prove(self, fd: int, serial: int, fields: list[bytes]) -> None:
        """Prove to a server that the keeper knows the secret, then have it prove the same."""
        peer = self.links[fd]
        asked, own = peer.nonces
        if not own:
            peer.nonces = asked, own = fields[0], proof.nonce()
            said = proof.answer(self.secret, proof.KEEPER, asked, own)
            self.links.say(fd, messages.PROOF, serial, [own, said])
            return
        peer.nonces = (b"", b"")
        if not proof.fits(self.secret, proof.SERVER, asked, own, fields[0]):
            raise ValueError("not our secret")
        peer.proven = True
        self.links.say(fd, messages.PROOF, serial, [])


def _noted(number: int, frame: object) -> None:
    """Do nothing: the wake-up pipe has the signal's number."""


def become_subreaper() -> bool:
    """Become the parent of orphans of the children; False where that is refused."""
    done: int = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return done == 0


def main(argv: list[str]) -> None:
    """``keeper LINK LISTENER SECRET ORPHAN_TTL``: descriptors 3.. of the first three, or -.

    ``--check FORM`` says by its exit code whether that form of a handover can be read, and
    ``--state FD`` takes one over.
    """
    if argv[0] == "--check":
        sys.exit(argv[1].encode() != reexec_save.FORM)
    os.chdir("/")
    if argv[0] == "--state":
        from handrail.keeper import reexec_load

        keeper = reexec_load.revive(int(argv[1]))
        keeper.children.near = become_subreaper()
        keeper.run()
        return
    first, listener, secret, orphan_ttl = argv
    own_fds.close_inherited({int(fd) for fd in (first, listener, secret) if fd != "-"})
    keeper = Keeper(float(orphan_ttl))
    if secret != "-":  # noqa: S105 (none was passed)
        keeper.secret = os.read(int(secret), 4096)
        os.close(int(secret))
    keeper.children.near = become_subreaper()
    if listener != "-":
        keeper.listener = socket.socket(fileno=int(listener))
        keeper.listener.setblocking(False)
        # Again, by this process: from now on the kernel names it to servers, even while
        # it is stopped and cannot say so itself.
        keeper.listener.listen(_BACKLOG)
        os.set_inheritable(int(listener), False)
    os.set_inheritable(int(first), False)
    keeper.links.add(socket.socket(fileno=int(first)))
    keeper.run()
