"""Which user has the other end of a TCP connection on this machine.

The kernel is asked for the *client's* socket, by the exact addresses and ports of the accepted one
(``sock_diag``, no privilege needed, tens of microseconds).  ``/proc/net/tcp`` has the same a
hundred times more slowly; it is read only where the kernel has no ``sock_diag`` for TCP.

What the answers do not say by themselves:

* A socket that its process has closed has inode 0, and after a while shows user 0 whatever its user
  was.  Only a socket that a process still holds has an owner.
* The kernel also returns a listening socket where it finds no connection.  An answer counts only
  with both addresses and ports, in a state that comes after the opening.
* After a reset the addresses are free for another connection, while what was sent before can still
  be read.  So the accepted socket must still be connected *after* the kernel was asked.
* A client may connect to an IPv4 address by an IPv6 socket (``::ffff:127.0.0.1``).
* Uids are those of this process's user namespace; one without a mapping is shown as the overflow
  user.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from typing import NamedTuple

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_NLMSG_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBxxI")
_ADDRESSES = struct.Struct(">HH16s16s")
_TAIL = struct.Struct("=III")
_ANSWER = struct.Struct("=BB")
_OWNER = struct.Struct("=II")
#: Offsets in an answer, behind its header.
_ADDRESSES_AT, _OWNER_AT = _HEADER.size + 4, _HEADER.size + 64
_ANSWER_SIZE = _HEADER.size + 72
_ANY_STATE = 0xFFFFFFFF
#: The loopback device of every network namespace: finds sockets bound to the device too.
_LOOPBACK_DEVICE = 1
#: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
_CONNECTED = frozenset((1, 4, 5, 8, 9, 11))
_MAPPED = bytes(10) + b"\xff\xff"


class UnknownOwner(Exception):
    """The user of the other end is unknown; the text says why."""


class _Ends(NamedTuple):
    """One connection as the client's socket has it: its own end first, in IPv6 form."""

    source: bytes
    source_port: int
    target: bytes
    target_port: int

    def turned(self) -> _Ends:
        return _Ends(self.target, self.target_port, self.source, self.source_port)


class _Found(NamedTuple):
    state: int
    uid: int
    inode: int


class PeerUids:
    """Looks up the owners of peers; holds one netlink socket until ``close``.  Not thread-safe.

    After ``close`` the next look opens another one.
    With a ``netlink`` socket that was made in another network namespace, peers are looked for
    there and nowhere else.
    """

    def __init__(self, netlink: socket.socket | None = None) -> None:
        self._netlink = netlink
        self._elsewhere = netlink is not None
        self._asked = 0
        self._works = False

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def uid(self, conn: socket.socket) -> int:
        """The uid of the process that holds the other end of ``conn``; raises UnknownOwner."""
        return self._owner(conn).uid

    def inode(self, conn: socket.socket) -> int:
        """The inode of the other end's socket, as /proc shows it; raises UnknownOwner."""
        return self._owner(conn).inode

    def _owner(self, conn: socket.socket) -> _Found:
        try:
            ends = _ends(conn)
            found = self._look(ends)
            still = _ends(conn)
        except OSError as error:
            raise UnknownOwner(f"the kernel does not say: {error.strerror or error}") from None
        if found is None:
            raise UnknownOwner("no socket of this machine has these addresses")
        if still != ends or found.state not in _CONNECTED or not found.inode:
            raise UnknownOwner("the process at the other end has closed it")
        return found

    def _look(self, ends: _Ends) -> _Found | None:
        if self._elsewhere:
            return self._diag(ends)
        try:
            found = self._diag(ends)
            # Without the kernel module for TCP every socket is reported missing, our own end too.
            self._works = self._works or bool(found or self._diag(ends.turned()))
        except OSError:
            self.close()
            if self._works:
                raise
        # The tables are long: peers must not be able to cause reading them by closing in time.
        return found if self._works else _listed(ends)

    def _diag(self, ends: _Ends) -> _Found | None:
        for family in _families(ends):
            found = self._ask(family, ends)
            if found is not None:
                return found
        return None

    def _ask(self, family: int, ends: _Ends) -> _Found | None:
        if self._netlink is None:
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
            self._netlink.setblocking(False)  # the kernel answers during the send
        self._asked = (self._asked + 1) & 0xFFFFFFFF
        query = (
            _QUERY.pack(family, socket.IPPROTO_TCP, _ANY_STATE)
            + _ADDRESSES.pack(
                ends.source_port,
                ends.target_port,
                _native(family, ends.source),
                _native(family, ends.target),
            )
            + _TAIL.pack(_LOOPBACK_DEVICE, 0xFFFFFFFF, 0xFFFFFFFF)
        )
        size = _HEADER.size + len(query)
        self._netlink.send(_HEADER.pack(size, _BY_FAMILY, _REQUEST, self._asked, 0) + query)
        while True:
            answer, sender = self._netlink.recvfrom(4096)
            _, kind, _, number, _ = _HEADER.unpack_from(answer)
            if sender[0] == 0 and number == self._asked:
                break
        if kind == _NLMSG_ERROR:
            return None
        if kind != _BY_FAMILY or len(answer) < _ANSWER_SIZE:
            raise OSError(errno.EPROTO, "an answer of another kind")
        return _read(answer, ends)


def _read(answer: bytes, ends: _Ends) -> _Found | None:
    family, state = _ANSWER.unpack_from(answer, _HEADER.size)
    source_port, target_port, source, target = _ADDRESSES.unpack_from(answer, _ADDRESSES_AT)
    got = _Ends(_common(family, source), source_port, _common(family, target), target_port)
    return _Found(state, *_OWNER.unpack_from(answer, _OWNER_AT)) if got == ends else None


def _ends(conn: socket.socket) -> _Ends:
    """The addresses of a connection; raises OSError when it is no longer connected."""
    peer, own = conn.getpeername(), conn.getsockname()
    return _Ends(_packed(peer[0]), peer[1], _packed(own[0]), own[1])


def _packed(text: str) -> bytes:
    if ":" in text:
        return socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    return _MAPPED + socket.inet_pton(socket.AF_INET, text)


def _families(ends: _Ends) -> tuple[int, ...]:
    if ends.source.startswith(_MAPPED) and ends.target.startswith(_MAPPED):
        return socket.AF_INET, socket.AF_INET6
    return (socket.AF_INET6,)


def _native(family: int, address: bytes) -> bytes:
    return address[12:].ljust(16, b"\0") if family == socket.AF_INET else address


def _common(family: int, address: bytes) -> bytes:
    return _MAPPED + address[:4] if family == socket.AF_INET else address


def is_loopback(conn: socket.socket) -> bool:
    """Whether either end has a loopback address.

    Either: a client may give itself any address of the machine before it connects to 127.0.0.1.
    Raises OSError when ``conn`` is no longer connected.
    """
    ends = _ends(conn)
    return _loops(ends.source) or _loops(ends.target)


def _loops(address: bytes) -> bool:
    return address == bytes(15) + b"\1" or address.startswith(_MAPPED + b"\x7f")


# --- /proc ----------------------------------------------------------------------------------------


def _listed(ends: _Ends) -> _Found | None:
    """Like `_diag`, from the tables in /proc; raises OSError where there are none."""
    found = None
    readable = 0
    for family in _families(ends):
        wanted = b"%b:%04X %b:%04X" % (
            _shown(family, ends.source),
            ends.source_port,
            _shown(family, ends.target),
            ends.target_port,
        )
        name = "/proc/net/tcp" if family == socket.AF_INET else "/proc/net/tcp6"
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as table:
            readable += 1
            for line in table:
                if wanted in line:
                    words = line.split()
                    found = _Found(int(words[3], 16), int(words[7]), int(words[9]))
                    if found.inode:
                        return found
    if not readable:
        raise FileNotFoundError(errno.ENOENT, "neither sock_diag nor /proc/net/tcp is to be had")
    return found


def _shown(family: int, address: bytes) -> bytes:
    """An address as those tables have it: words in this machine's byte order."""
    raw = _native(family, address)[: 4 if family == socket.AF_INET else 16]
    words = (int.from_bytes(raw[at : at + 4], sys.byteorder) for at in range(0, len(raw), 4))
    return b"".join(b"%08X" % word for word in words)
