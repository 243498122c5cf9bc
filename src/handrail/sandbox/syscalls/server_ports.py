"""Whether an Internet address leads to a listener of this very process.

A command with an open network could otherwise ask the server that runs it to start another
command, without a sandbox.  The ports are those of ``handrail.listeners``; an address with such a
port is ours unless the kernel says clearly that it is none of this machine.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys

from handrail import listeners
from handrail.sandbox.syscalls import notify

_INET, _INET6 = int(socket.AF_INET), int(socket.AF_INET6)
_MAPPED = bytes(10) + b"\xff\xff"
_COMPATIBLE = bytes(12)
_GET_ROUTE, _NEW_ROUTE, _REQUEST, _ERROR = 26, 24, 1, 2
_RTA_DST = 1
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
#: UNICAST, BLACKHOLE, UNREACHABLE, PROHIBIT: what goes there leaves this machine, or nowhere.
_ELSEWHERE = frozenset((1, 6, 7, 8))


def is_ours(address: bytes) -> bool:
    """Whether a connection to this ``sockaddr`` could arrive at a listener of this process."""
    if not listeners.has(int.from_bytes(address[2:4], "big")):
        return False
    family = int.from_bytes(address[:2], sys.byteorder)
    if family == _INET:
        return len(address) < 8 or _is_here(_INET, address[4:8])
    if family != _INET6:
        return False  # no such address is connected to
    host = address[8:24]
    if len(host) < 16:
        return True
    if host.startswith(_MAPPED):
        return _is_here(_INET, host[12:])
    if host[0] == 0xFE and host[1] & 0xC0 == 0x80:
        return True  # link-local: which device it means is up to the socket
    # `::` and `::1` begin like the old form of IPv4 addresses, and are of this machine.
    return _is_here(_INET6, host) or (host.startswith(_COMPATIBLE) and _is_here(_INET, host[12:]))


def _is_here(family: int, host: bytes) -> bool:
    """Whether the kernel does not say that this address is another machine's."""
    try:
        return _bind_error(family, host) != errno.EADDRNOTAVAIL or _stays_here(family, host)
    except OSError:
        return True


def _bind_error(family: int, host: bytes) -> int:
    """What the kernel says to a socket that is to have this address; 0: it can."""
    head = family.to_bytes(2, sys.byteorder) + bytes(2)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        if family == _INET:
            return notify.bind(probe.fileno(), head + host + bytes(8))
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return notify.bind(probe.fileno(), head + bytes(4) + host + bytes(4))


def _stays_here(family: int, host: bytes) -> bool:
    """Whether the routes send it back to this machine; IPv6 can do so for foreign addresses."""
    try:
        netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    except OSError:
        return False  # no such sockets here: what ``bind`` said stands
    with netlink:
        netlink.setblocking(False)  # the kernel answers while it is being asked
        route = _ROUTE.pack(family, len(host) * 8, 0, 0, 0, 0, 0, 0, 0)
        query = route + _ATTRIBUTE.pack(_ATTRIBUTE.size + len(host), _RTA_DST) + host
        netlink.send(_HEADER.pack(_HEADER.size + len(query), _GET_ROUTE, _REQUEST, 1, 0) + query)
        answer = netlink.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        return False  # no way there at all
    if kind != _NEW_ROUTE or len(answer) < _HEADER.size + _ROUTE.size:
        return True
    return _ROUTE.unpack_from(answer, _HEADER.size)[7] not in _ELSEWHERE
