"""Ask this machine for its own addresses, and for the addresses of names."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from handrail.network.hosts import Address

_NETLINK_ROUTE = 0
_GET_ADDRESSES, _NEW_ADDRESS, _DONE, _ERROR = 22, 20, 3, 2
_REQUEST_DUMP = 0x301
_HEADER = struct.Struct("=IHHII")
_IFADDR = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_ADDRESS, _LOCAL = 1, 2
_BUFFER = 1 << 16


def own_addresses() -> frozenset[Address]:
    """All addresses of this machine now; raises OSError when the kernel does not say."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as netlink:
        netlink.settimeout(2.0)  # the kernel answers during the send
        body = _IFADDR.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        head = _HEADER.pack(_HEADER.size + len(body), _GET_ADDRESSES, _REQUEST_DUMP, 1, 0)
        netlink.send(head + body)
        found: set[Address] = set()
        while True:
            data = netlink.recv(_BUFFER)
            for kind, message in _messages(data):
                if kind == _DONE:
                    return frozenset(found)
                if kind == _ERROR:
                    raise OSError(errno.EPROTO, "the kernel does not list its addresses")
                if kind == _NEW_ADDRESS:
                    found.update(_addresses(message))


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def _addresses(message: bytes) -> Iterator[Address]:
    # Of a point-to-point interface ADDRESS is the other end: LOCAL, where there is one, is ours.
    at = _IFADDR.size
    values: dict[int, bytes] = {}
    while at + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if size < _ATTRIBUTE.size:
            break
        values[kind] = message[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3
    raw = values.get(_LOCAL) or values.get(_ADDRESS)
    if raw is not None:
        yield IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)


def look_up(name: str) -> list[Address]:
    """The addresses of a name, in the order in which to dial them; none when there is none.

    Blocks as long as the resolver takes.  A final dot keeps search domains out, so that the name
    that was judged is the name that is asked for; the file of hosts, which knows no final dots, is
    read here.  A name of one label has no other meaning than that with the search domains.
    """
    if "." in name:
        listed = _listed(name)
        if listed:
            return listed
        name += "."
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(ip_address(str(one[4][0]).partition("%")[0]) for one in found))


def _listed(name: str, path: str = "/etc/hosts") -> list[Address]:
    """The addresses that the file of hosts has for a name."""
    found: dict[Address, None] = {}
    try:
        with open(path, encoding="latin-1") as file:
            for line in file:
                address, *names = line.partition("#")[0].split() or ("",)
                if any(one.lower().removesuffix(".") == name for one in names):
                    with contextlib.suppress(ValueError):
                        found[ip_address(address.partition("%")[0])] = None
    except OSError:
        return []
    return list(found)


class Names(Mapping[str, Sequence[Address]]):
    """The resolver of this machine as a mapping."""

    def __getitem__(self, name: str) -> Sequence[Address]:
        return look_up(name)

    def __iter__(self) -> Iterator[str]:
        raise TypeError("the names of the world cannot be listed")

    def __len__(self) -> int:
        raise TypeError("the names of the world cannot be counted")
