"""What the keeper and its server say to each other.

One packet on a SOCK_SEQPACKET socket is one message: a fixed head (what, serial number of the
question), then fields joined by NUL, with descriptors beside them by SCM_RIGHTS.  Nothing a
child can be given contains a NUL, so nothing needs escaping.  A body that does not fit into a
packet travels as a memfd, which is then the last descriptor.

Both ends are ours and of one version; HELLO carries that version so that a server never
talks to a keeper it does not understand.
"""

from __future__ import annotations

import array
import os
import socket
import struct

from handrail import unnamed_file

VERSION = 6
#: How the reason begins when HELLO is refused for its version; for all versions.
OTHER_VERSION = b"the keeper speaks version "

# What a server asks.
HELLO = 1  # version, pid, and perhaps "claim": then a holder that does not answer is ended
SPAWN = 2  # child, mode, rows, cols, "N,N..." numbers of passed descriptors in the child (-1: the
# program that announces its calls), program, argc and perhaps " NOTE", argv..., "K=V"...
# fds: cwd, then those that are passed
SIGNAL = 3  # child, signal number, scope
KEEP = 4  # child, name        fds: one, held under that name
RELEASE = 5  # child...        their streams have ended: close pipes and terminals, keep the rest
FORGET = 6  # child...         the server has everything it wants of them
DROP = 7  # child, name       close the copy held under that name
LIST = 8
ORPHANS = 9  # who still has descendants whose parents are gone
STOP = 10  # end everything, then yourself
NOTE = 11  # key, value; or key alone to drop it.  Kept for the next server, not looked at
REEXEC = 12  # python, program: become that keeper.  This form is for all versions
WHO = 13  # whose is the lease; answered to everybody
BYE = 14  # the holder lets go and touches nothing any more
ALIVE = 15  # the holder's answer to ASKED
ADOPT = 16  # child, pid, mark, 1 if it is in a sandbox, status or -, "user system rss", when it
# ended in ms, note, names...  fds: a child of a keeper that is gone
DUE = 17  # child, cause, when (monotonic ms), grace in ms, until when another keeper has seen to
# it or -1: end it then
PROVE = 18  # nonce: answered with PROOF; then PROVE, answer: see proof.py
SECRET = 19  # what servers that find us by our socket have to know
ABILITIES = 20  # how trees are ended, and which limits can be set

# What a keeper says.
WELCOME = 32  # version, keeper pid, when the server before was lost (monotonic) or -, mark of
# its first child
SPAWNED = 33  # child, pid, mark   fds: by the names in spawn.py, perhaps a listener, then a pidfd
FAILED = 34  # errno, step
EXITED = 35  # child, wait status, user ms, system ms, max RSS bytes
DONE = 36  # how many processes a signal reached; for ORPHANS: child, how many, child, ...
CHILD = 37  # child, pid, status or -, user ms, system ms, max RSS, names..., and perhaps "=NOTE"
# fds in the order of the names; DONE ends the list
REFUSED = 38  # reason
NOTED = 39  # key, value: part of the list; "families": see Children.families
ASKED = 40  # to the holder: are you there
PROOF = 42  # nonce, answer; and once more, without fields, when the server has proved itself
BEGUN = 41  # child, when (monotonic ms): a signal was sent that was due then

# How a child is started; limits follow as " name=value", by the names in limits.py, and perhaps
# "end" and "grace" (as in DUE, for want of time) and "inside" (a sandbox, whose leader is outside).
MODE_PIPES = b"pipes"  # stdin is the null device
MODE_STDIN = b"stdin"  # pipes, and a writable stdin
MODE_PTY = b"pty"
MODE_PTY_LOOSE = b"pty-loose"  # a terminal that controls nobody: it is taken inside a sandbox

# Whom a signal reaches.
SCOPE_LEADER = b"leader"
SCOPE_GROUP = b"group"
SCOPE_TREE = b"tree"

_HEAD = struct.Struct("<BI")
_BIG = 0x80  # flag in the first byte: the body is in the last descriptor
#: Bodies above this travel in a memfd: well under the default socket buffer of 208 KiB.
PACKET_LIMIT = 60_000
#: As many as the kernel takes: a sandbox needs one for every mount.
_MAX_FDS = 253
_FD_SIZE = array.array("i").itemsize
_ANCILLARY = socket.CMSG_SPACE(_MAX_FDS * _FD_SIZE)


class Message:
    """One message, received.

    ``cut`` says that the receiver had no descriptors free: none has come, and a body that
    travelled in one is lost as well.
    """

    __slots__ = ("cut", "fds", "fields", "op", "serial")

    def __init__(
        self, op: int, serial: int, fields: list[bytes], fds: list[int], cut: bool = False
    ) -> None:
        self.op = op
        self.serial = serial
        self.fields = fields
        self.fds = fds
        self.cut = cut

    def close(self) -> None:
        """Close descriptors nobody took."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(
    sock: socket.socket,
    op: int,
    serial: int = 0,
    fields: tuple[bytes, ...] | list[bytes] = (),
    fds: tuple[int, ...] | list[int] = (),
) -> None:
    """Send one message.

    Raises BlockingIOError when the other end does not keep up, ValueError when a field holds a
    NUL: it would be read as two.
    """
    body = b"\0".join(fields)
    if fields and body.count(0) != len(fields) - 1:
        raise ValueError("a field of the keeper link holds a NUL")
    if len(body) > PACKET_LIMIT:
        big = unnamed_file.create("handrail-message")
        try:
            view = memoryview(body)
            while view:
                view = view[os.write(big, view) :]
            _send(sock, _HEAD.pack(op | _BIG, serial), (*fds, big))
        finally:
            os.close(big)
    else:
        _send(sock, _HEAD.pack(op, serial) + body, fds)


def _send(sock: socket.socket, data: bytes, fds: tuple[int, ...] | list[int]) -> None:
    if fds:
        rights = array.array("i", fds)
        sock.sendmsg((data,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, rights),))
    else:
        sock.send(data)


def receive(sock: socket.socket) -> Message | None:
    """The next message; None when the other end is gone.  Raises BlockingIOError when idle."""
    data, ancillary, flags, _ = sock.recvmsg(
        PACKET_LIMIT + _HEAD.size, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    for level, kind, rights in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(rights[: len(rights) - len(rights) % _FD_SIZE])
            fds.extend(numbers)
    if not data:
        return None
    broken = len(data) < _HEAD.size or flags & socket.MSG_TRUNC
    cut = bool(flags & socket.MSG_CTRUNC)
    if broken or cut or (data[0] & _BIG and not fds):
        for fd in fds:
            os.close(fd)
        if broken or not cut:
            raise OSError("no message of the keeper link; both ends must be of one version")
        op, serial = _HEAD.unpack_from(data)
        body = b"" if op & _BIG else data[_HEAD.size :]
        return Message(op & ~_BIG, serial, body.split(b"\0") if body else [], [], cut=True)
    op, serial = _HEAD.unpack_from(data)
    if op & _BIG:
        op &= ~_BIG
        big = fds.pop()
        try:
            body = _read_all(big)
        finally:
            os.close(big)
    else:
        body = data[_HEAD.size :]
    return Message(op, serial, body.split(b"\0") if body else [], fds)


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)
