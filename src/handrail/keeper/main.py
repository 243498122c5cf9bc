"""The keeper's loop: spawn, hold, reap, kill, hand over.

How it works.  One thread, one poll over: the link of the server that holds the lease, links
that ask for it, the listening socket in the state directory, a descriptor of SIGCHLD and SIGTERM
(``noted_signals.py``), and the pidfds of children that were started when there were many, by
another thread (``spawn_thread.py``).  ``children.py`` is the table of what we hold,
``servers/links.py`` the servers.

The end.  An embedded keeper (no socket to be found by) ends with its owner and takes the
children along.  One with a socket outlives its server and waits ``orphan_ttl`` seconds for
the next (``servers/orphan_ttl.py``); then it ends what is left.  STOP ends everything at once.
``servers/handoff.py`` is how one server follows another, ``restart/save.py`` how one keeper does.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator

from handrail import secret_proof
from handrail.keeper import hardening, messages, null_device, own_fds, tree, waiting_children
from handrail.keeper.children import Children
from handrail.keeper.limits import rlimits
from handrail.keeper.noted_signals import NotedSignals
from handrail.keeper.proc_children import children_of
from handrail.keeper.readiness import Readiness
from handrail.keeper.restart import save as reexec_save
from handrail.keeper.servers.handoff import ServerHandoff
from handrail.keeper.servers.lease import Lease
from handrail.keeper.servers.links import Making, ServerLinks
from handrail.keeper.servers.orphan_ttl import OrphanWait

_PR_SET_CHILD_SUBREAPER = 36
#: How long STOP waits for what it killed; a process in uninterruptible sleep outlasts it.
_STOP_SECONDS = 2.0
#: Servers that wait to be heard, and those that only looked whether a keeper listens.
_BACKLOG = 4096
#: Without anything to do; poll takes no more than 24 days.
_LONGEST_SECONDS = 3600.0


class Keeper:
    """The children, the links to servers, and the notes that servers left for the next."""

    def __init__(self, orphan_ttl: float) -> None:
        self.poll = Readiness()
        self.links = ServerLinks(self.poll)
        self.lease = Lease()
        self.orphan_wait = OrphanWait(orphan_ttl)
        self.children = Children(self.links, self.lease, self.poll)
        self.succession = ServerHandoff(
            self.links, self.lease, self.orphan_wait, self.children, self.lost
        )
        self.notes: dict[bytes, bytes] = {}
        self.listener: socket.socket | None = None
        #: What a server that comes by the listener must know; none: nothing is asked for.
        self.secret = b""
        self.running = True

    def lost(self, fd: int) -> None:
        self.links.remove(fd)
        self.succession.gone(fd)
        # Also when it had never said hello: an owner may die before it does.
        if self.lease.holder is None:
            waiting_children.end_all(self.children)
            if self.listener is None:
                self.stop()
            else:
                self.orphan_wait.start(time.monotonic())

    def hear(self, fd: int) -> None:
        """Handle a few messages of one link, then those of the others."""
        sock = self.links[fd].sock
        left = 8
        while left > 0 and self.running and fd in self.links:
            try:
                heard = messages.receive_all(sock)
            except BlockingIOError:
                return
            except OSError:
                heard = []
            if not heard:
                self.lost(fd)
                return
            left -= len(heard)
            self.links.several |= len(heard) > 1
            for message in heard:
                self.take(fd, message)

    def take(self, fd: int, message: messages.Message) -> None:
        """Handle one message, and close what it has passed and was not taken."""
        try:
            if not self.running or fd not in self.links:
                return
            if message.op != messages.SPAWN and self.links.unsent:
                self.links.end_turn()  # it may close what these pass on
            self.obey(fd, message)
        except Exception as error:  # noqa: BLE001 (the children must not end with it)
            # Not what a server of ours says, or no way to answer it: that is the end of
            # this link, and of nothing else.
            if not isinstance(error, (OSError, ValueError, IndexError)):
                sys.excepthook(type(error), error, error.__traceback__)  # into the log
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
        elif op == messages.USE:
            waiting_children.use(self.children, fd, serial, messages.Use.unpack(fields))
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
            self.links.pour(fd, self.everything(serial))
        elif op == messages.SECRET:
            self.secret = fields[0]
        elif op == messages.ABILITIES:
            names = sorted(rlimits.RESOURCES.keys() | self.children.tree_limits)
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

    def everything(self, serial: int) -> Iterator[Making]:
        """The answer to LIST: all notes, all children, and that these were all."""
        for note in list(self.notes.items()):
            yield _message(messages.NOTED, serial, messages.Note(*note).pack())
        yield from self.children.describe_all(serial)
        number = messages.Count(len(self.children.entries))
        yield _message(messages.DONE, serial, number.pack())

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
            self.children.reap_all()
            left = children_of(os.getpid())
            if not left:
                break
            for pid in left:
                tree.kill(pid, 0, set(left))
            time.sleep(0.001)
        self.children.groups.close()
        self.running = False

    def run(self) -> None:
        """Serve, and return when everything is over."""
        hardening.ignore_terminal()
        own_fds.make_room()
        null_device.prepare()
        self.serve(NotedSignals())

    def serve(self, signals: NotedSignals) -> None:
        """Do what servers ask for, take exits, and end what is due, until STOP or the end."""
        self.poll.register(signals.fd, select.EPOLLIN)
        if self.listener is not None:
            self.poll.register(self.listener.fileno(), select.EPOLLIN)
        self.children.limits.set_own(self.children.mark)
        hardening.become_private()
        # A child leaves no garbage that only cycles hold, and each start would be looked through.
        gc.freeze()
        gc.set_threshold(20_000, 50, 50)
        self.children.listed_orphans()  # its descriptor is opened while others are free
        self.children.reap_all()
        due = self.next_due()
        while self.running:
            ended: list[int] = []
            woken = False
            ready = self.poll.poll(None if due is None else _patience(due))
            self.links.several = len(ready) > 1
            for fd, events in ready:
                if fd == signals.fd:
                    woken = True
                elif fd in self.children.by_pidfd:
                    ended.append(fd)
                elif fd in self.links:
                    if events & select.EPOLLOUT:
                        self.links.flush(fd)
                    if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                        self.hear(fd)
                elif self.listener is not None and fd == self.listener.fileno():
                    self.accept()
                elif fd in self.children.lone:
                    self.children.lone_ended(fd)
            if woken or ended:
                # Also of pidfds alone: their SIGCHLD has come by now, and would wake us once more.
                if signal.SIGTERM in signals.take():
                    self.stop()
                self.children.reap(ended)
            if self.links.unsent:
                self.links.end_turn()
            due = self.next_due()
            if due is not None:
                self.do_due()
                self.links.end_turn()
                due = self.next_due()

    def next_due(self) -> float | None:
        """When something is due without a request, on the monotonic clock; None: nothing is."""
        claims, orphans_end = self.succession.claims, self.orphan_wait.until
        endings, watcher = self.children.endings, self.children.watcher
        if not claims and orphans_end is None and not endings.due and watcher.next is None:
            return None  # as in most turns
        due = [claim.deadline for claim in claims[:1]]
        if orphans_end is not None:
            due.append(orphans_end)
        if endings.next is not None:
            due.append(endings.next / 1000)
        if watcher.next is not None:
            due.append(watcher.next / 1000)
        return min(due)

    def do_due(self) -> None:
        """Do what is due by now."""
        self.succession.fence_silent()
        now = time.monotonic_ns() // 1_000_000
        self.children.endings.run(now)
        self.children.watcher.run(now)
        if self.orphan_wait.expired(time.monotonic()):
            self.stop()

    def accept(self) -> None:
        assert self.listener is not None  # noqa: S101 (the poll only names it when there is one)
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        pid, uid = secret_proof.peer(sock)
        if uid != os.getuid() or pid == 0:  # 0: in no pid namespace that we see
            sock.close()
            return
        self.links.add(sock, proven=not self.secret)

    def prove(self, fd: int, serial: int, fields: list[bytes]) -> None:
        """Prove to a server that the keeper knows the secret, then have it prove the same."""
        peer = self.links[fd]
        asked, own = peer.nonces
        if not own:
            peer.nonces = asked, own = fields[0], secret_proof.nonce()
            said = secret_proof.answer(self.secret, secret_proof.KEEPER, asked, own)
            self.links.say(fd, messages.PROOF, serial, [own, said])
            return
        peer.nonces = (b"", b"")
        if not secret_proof.fits(self.secret, secret_proof.SERVER, asked, own, fields[0]):
            raise ValueError("not our secret")
        peer.proven = True
        self.links.say(fd, messages.PROOF, serial, [])


def _patience(due: float) -> float:
    """Seconds until ``due`` and a millisecond: a poll that returns early finds nothing to do."""
    return max(0.0, min(due - time.monotonic(), _LONGEST_SECONDS)) + 0.001


def _message(op: int, serial: int, fields: list[bytes]) -> Making:
    """A message without descriptors, as part of a long answer."""
    sent: messages.Outgoing = (op, serial, fields, [])
    return lambda: iter([sent])


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
        from handrail.keeper.restart import load as reexec_load

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
