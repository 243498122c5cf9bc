"""Is this address one that a handrail process of this user listens on?

A command with network access could otherwise tell the server that runs it to start another command
without a sandbox.  The ports are those of ``handrail.listeners``; an address with such a port
counts as ours unless the kernel says clearly that it belongs to another machine.
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
#: UNICAST, BLACKHOLE, UNREACHABLE, PROHIBIT: such packets leave this machine, or are dropped.
_ELSEWHERE = frozenset((1, 6, 7, 8))


def is_ours(address: bytes) -> bool:
    """Whether a connection to this ``sockaddr`` could reach a listener of handrail's."""
    if not listeners.has(int.from_bytes(address[2:4], "big")):
        return False
    family = int.from_bytes(address[:2], sys.byteorder)
    if family == _INET:
        return len(address) < 8 or _is_here(_INET, address[4:8])
    if family != _INET6:
        return False  # such an address is never connected to
    host = address[8:24]
    if len(host) < 16:
        return True
    if host.startswith(_MAPPED):
        return _is_here(_INET, host[12:])
    if host[0] == 0xFE and host[1] & 0xC0 == 0x80:
        return True  # link-local: the socket decides which device is meant
    # `::` and `::1` begin like IPv4-compatible addresses, and belong to this machine.
    return _is_here(_INET6, host) or (host.startswith(_COMPATIBLE) and _is_here(_INET, host[12:]))


def _is_here(family: int, host: bytes) -> bool:
    """Whether the address may be this machine's: the kernel does not deny it."""
    try:
        return _bind_error(family, host) != errno.EADDRNOTAVAIL or _stays_here(family, host)
    except OSError:
        return True


def _bind_error(family: int, host: bytes) -> int:
    """Bind a socket to this address; return the errno, or 0 if it can be bound."""
    head = family.to_bytes(2, sys.byteorder) + bytes(2)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        if family == _INET:
            return notify.bind(probe.fileno(), head + host + bytes(8))
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return notify.bind(probe.fileno(), head + bytes(4) + host + bytes(4))


def _stays_here(family: int, host: bytes) -> bool:
    """Whether routing sends it back to this machine, as IPv6 can do for foreign addresses."""
    try:
        netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    except OSError:
        return False  # no such sockets here: the result of ``bind`` stands
    with netlink:
        netlink.setblocking(False)  # the kernel answers during the send
        route = _ROUTE.pack(family, len(host) * 8, 0, 0, 0, 0, 0, 0, 0)
        query = route + _ATTRIBUTE.pack(_ATTRIBUTE.size + len(host), _RTA_DST) + host
        netlink.send(_HEADER.pack(_HEADER.size + len(query), _GET_ROUTE, _REQUEST, 1, 0) + query)
        answer = netlink.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        return False  # no route at all
    if kind != _NEW_ROUTE or len(answer) < _HEADER.size + _ROUTE.size:
        return True
    return _ROUTE.unpack_from(answer, _HEADER.size)[7] not in _ELSEWHERE
