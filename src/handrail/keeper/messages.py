"""The messages between the keeper and its server.

One packet on a SOCK_SEQPACKET socket is one message: a fixed head (operation, serial number of the
question), then fields joined by NUL, with descriptors beside them by SCM_RIGHTS.  Nothing a
child can be given contains a NUL, so nothing needs escaping.  A body that does not fit into a
packet travels as a memfd, which is then the last descriptor.  Short messages that are ready at the
same time travel in one packet (MANY), so that the other end is woken once.

Each operation that has fields has one class below, which both ends use.  Both ends are of one
version; HELLO carries it, so that a server never talks to a keeper it does not understand.  What is
said before that is the same in all versions: PROVE, PROOF, WHO, REEXEC, the first two fields of
HELLO, and their answers.
"""

from __future__ import annotations

import array
import os
import socket
import struct

from handrail import memory_file
from handrail.keeper.fields import Fields

VERSION = 12
#: How the reason begins when HELLO is refused for its version; for all versions.
OTHER_VERSION = b"the keeper speaks version "

#: Several messages, one after the other: each with a head of its own; fds: theirs, in this order.
MANY = 0

# What a server asks, and the class of the fields.
HELLO = 1  # Hello, answered by WELCOME or REFUSED
SPAWN = 2  # Spawn, answered by SPAWNED or FAILED; fds: cwd, then those that are passed
SIGNAL = 3  # Signal, answered by a Count of the processes it reached
KEEP = 4  # Copy; fds: one, to hold under that name
RELEASE = 5  # child...: their streams have ended: close pipes and terminals, keep the rest
FORGET = 6  # child...: the server has everything it wants of them
DROP = 7  # Copy: close what is held under that name
LIST = 8  # answered by NOTED for each note, CHILD for each child, and a Count of the children
ORPHANS = 9  # answered by Orphans
STOP = 10  # end everything, then yourself
NOTE = 11  # Note: keep it for the next server
REEXEC = 12  # Reexec: become that program; answered by a Count, the pid
WHO = 13  # answered to any link by a Count: the pid of the server that holds the lease
BYE = 14  # the holder lets go and touches nothing any more
ALIVE = 15  # the holder's answer to ASKED
ADOPT = 16  # ChildState: a child of a keeper that is gone; fds by its names
DUE = 17  # Due: end a child then
PROVE = 18  # nonce: answered with PROOF; then PROVE, answer: see secret_proof.py
SECRET = 19  # what servers that find us by our socket have to know
ABILITIES = 20  # answered by Abilities
USE = 21  # Use: a child that waits becomes a command; with a serial, answered by a Count or FAILED

# What a keeper says.
WELCOME = 32  # Welcome
SPAWNED = 33  # Spawned; fds: by the names in spawn.py, perhaps a listener, then a pidfd
FAILED = 34  # Count: the errno
EXITED = 35  # Exited
DONE = 36  # the answer to most questions
CHILD = 37  # ChildState; fds in the order of its names
REFUSED = 38  # reason
NOTED = 39  # Note
ASKED = 40  # to the holder: are you there
BEGUN = 41  # Begun
PROOF = 42  # nonce, answer; and once more, without fields, when the server has proved itself

# How a child is started.
MODE_PIPES = b"pipes"  # stdin is the null device
MODE_STDIN = b"stdin"  # pipes, and a writable stdin
MODE_PTY = b"pty"
MODE_PTY_LOOSE = b"pty-loose"  # a terminal that controls no session: it is taken in a sandbox

# Which processes a signal reaches.
SCOPE_LEADER = b"leader"
SCOPE_GROUP = b"group"
SCOPE_TREE = b"tree"


class Hello(Fields):
    """A server asks for the lease; ``claim``: end a holder that does not answer."""

    version: int
    pid: int
    claim: bool = False


class Welcome(Fields):
    """The server has the lease."""

    version: int
    pid: int  # of the keeper
    lost_at: float | None  # when the server before was lost, on the monotonic clock
    mark: int  # of the keeper's first child


class Spawn(Fields):
    """A child to start."""

    child: bytes
    mode: bytes
    rows: int
    cols: int
    program: bytes
    note: bytes  # kept for the next server
    sandboxed: bool  # the leader is outside of the sandbox
    argv: list[bytes]
    env: dict[bytes, bytes]
    passed: list[int]  # numbers of passed descriptors in the child (below 0: seccomp/spawn.py)
    limits: dict[bytes, int]  # by the names in limits.py
    end_at: int | None = None  # in monotonic ms: end it then, for want of time
    grace: int = 0  # in ms, between TERM and KILL
    #: The fd on which it waits for its command (``waiting_stub.py``), or ends with this server.
    line: int = 0


class Use(Fields):
    """The command of a child that waits."""

    child: bytes
    rows: int
    cols: int
    note: bytes
    cwd: bytes
    argv: list[bytes]
    env: dict[bytes, bytes]
    limits: dict[bytes, int]
    end_at: int | None = None
    grace: int = 0
    #: Inode and device of each placeholder that is covered before the command begins.
    covers: list[int] = []  # noqa: RUF012 (never changed)


class Spawned(Fields):
    """A child runs."""

    child: bytes
    pid: int
    mark: int


class Exited(Fields):
    """A child has ended."""

    child: bytes
    status: int
    user_ms: int
    system_ms: int
    max_rss: int
    #: It has left no descendant, and never will; else that has to be asked for.
    alone: bool = False


class Signal(Fields):
    """A signal for a child."""

    child: bytes
    number: int
    scope: bytes


class Copy(Fields):
    """A descriptor that the keeper holds for a child."""

    child: bytes
    name: bytes


class Note(Fields):
    """A note that the keeper stores for the next server and does not read."""

    key: bytes
    value: bytes
    keep: bool = True  # else it is dropped


class Reexec(Fields):
    """The program that the keeper is to become."""

    python: bytes
    program: bytes


class Due(Fields):
    """When and how a child is to be ended; times in monotonic ms."""

    child: bytes
    cause: bytes
    at: int
    grace: int
    done: int = -1  # up to this time a keeper has seen to it


class Begun(Fields):
    """A signal that was due has been sent."""

    child: bytes
    at: int


class ChildState(Fields):
    """Everything that one end knows of a child and the other does not."""

    child: bytes
    pid: int
    mark: int
    sandboxed: bool
    status: int | None  # None while it runs
    user_ms: int | None  # None: not counted, for its keeper was gone
    system_ms: int | None
    max_rss: int | None
    ended: int  # in monotonic ms; 0 while it runs
    note: bytes
    names: list[bytes]  # of the descriptors
    killed: bool = False  # with its whole tree, on request
    cause: bytes = b""  # why it is to be ended, if it is; then as in Due:
    at: int = 0
    grace: int = 0
    done: int = -1


class Count(Fields):
    """A number, as the answer to a question."""

    number: int


class Orphans(Fields):
    """How many descendants have outlived their parents, by child."""

    counts: dict[bytes, int]


class Abilities(Fields):
    """How trees are ended, and which limits can be set."""

    trees: bytes
    limits: list[bytes]


#: What is sent, to which question, with which fields and descriptors.
Outgoing = tuple[int, int, list[bytes], list[int]]

_HEAD = struct.Struct("<BI")
#: Of each message in a packet of several: also the length of its body, and how many fds it has.
_PART = struct.Struct("<BIIB")
_BIG = 0x80  # flag in the first byte: the body is in the last descriptor
#: Bodies above this travel in a memfd: well under the default socket buffer of 208 KiB.
PACKET_LIMIT = 60_000
#: As many as the kernel takes: a sandbox needs one for every mount.
_MAX_FDS = 253
_FD_SIZE = array.array("i").itemsize
_ANCILLARY = socket.CMSG_SPACE(_MAX_FDS * _FD_SIZE)
#: Plain integers: an operation on members of an enumeration takes longer than the call.
_CLOEXEC, _TRUNC = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_TRUNC)
_CTRUNC, _RIGHTS = int(socket.MSG_CTRUNC), (int(socket.SOL_SOCKET), socket.SCM_RIGHTS)


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
        """Close the descriptors that were not taken."""
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
        big = memory_file.of("handrail-message", body)
        try:
            rights = array.array("i", (*fds, big))
            sock.sendmsg((_HEAD.pack(op | _BIG, serial),), ((*_RIGHTS, rights),))
        finally:
            os.close(big)
    elif fds:
        rights = array.array("i", fds)
        sock.sendmsg((_HEAD.pack(op, serial), body), ((*_RIGHTS, rights),))
    else:
        sock.send(_HEAD.pack(op, serial) + body)


def send_many(sock: socket.socket, parts: list[Outgoing]) -> int:
    """Send as many of these messages as fit into one packet; how many that were.

    Raises what ``send`` raises, and has sent none then.
    """
    packet = [_HEAD.pack(MANY, 0)]
    passed = array.array("i")
    size = count = 0
    for op, serial, fields, fds in parts:
        body = b"\0".join(fields)
        size += _PART.size + len(body)
        if size > PACKET_LIMIT or len(passed) + len(fds) > _MAX_FDS:
            break
        if fields and body.count(0) != len(fields) - 1:
            break  # refused when it is the first
        packet += (_PART.pack(op, serial, len(body), len(fds)), body)
        passed.extend(fds)
        count += 1
    if count < 2:
        send(sock, *parts[0])
        return 1
    sock.sendmsg(packet, ((*_RIGHTS, passed),) if passed else ())
    return count


def receive(sock: socket.socket) -> Message | None:
    """The next message; None when the other end is gone.  Raises BlockingIOError when idle."""
    found = receive_all(sock)
    if len(found) > 1:
        for message in found:
            message.close()
        raise OSError("several messages where one is expected")
    return found[0] if found else None


def receive_all(sock: socket.socket) -> list[Message]:
    """The messages of the next packet; none when the other end is gone.

    Raises BlockingIOError when idle.
    """
    data, ancillary, flags, _ = sock.recvmsg(PACKET_LIMIT + _HEAD.size, _ANCILLARY, _CLOEXEC)
    fds: list[int] = []
    for level, kind, rights in ancillary:
        if (level, kind) == _RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(rights[: len(rights) - len(rights) % _FD_SIZE])
            fds.extend(numbers)
    if not data:
        return []
    broken = len(data) < _HEAD.size or flags & _TRUNC
    cut = bool(flags & _CTRUNC)
    if not broken and data[0] == MANY:
        return _several(data, fds)
    if broken or cut or (data[0] & _BIG and not fds):
        for fd in fds:
            os.close(fd)
        if broken or not cut:
            raise OSError("no message of the keeper link; both ends must be of one version")
        op, serial = _HEAD.unpack_from(data)
        body = b"" if op & _BIG else data[_HEAD.size :]
        return [Message(op & ~_BIG, serial, body.split(b"\0") if body else [], [], cut=True)]
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
    return [Message(op, serial, body.split(b"\0") if body else [], fds)]


def _several(data: bytes, fds: list[int]) -> list[Message]:
    """The messages of a packet; where descriptors are missing, the last ones are without.

    Raises OSError, and closes all descriptors, for a packet that is not of ours.
    """
    found: list[Message] = []
    at, taken = _HEAD.size, 0
    try:
        while at < len(data):
            op, serial, size, count = _PART.unpack_from(data, at)
            at += _PART.size + size
            body = data[at - size : at]
            mine = fds[taken : taken + count]
            taken += count
            cut = len(mine) < count
            found.append(Message(op, serial, body.split(b"\0") if body else [], mine, cut))
        if at > len(data) or taken < len(fds) or not found:
            raise struct.error
    except struct.error:
        for fd in fds:
            os.close(fd)
        raise OSError("no messages of the keeper link; both ends must be of one version") from None
    for message in found:
        if message.cut:
            message.close()
    return found


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)
