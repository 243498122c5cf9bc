"""Classes of addresses: public, loopback, private, metadata.  Which are open: ``decide.py``.

An IPv6 address that carries an IPv4 address is delivered to that one by some router or kernel, so
it is judged by both parts: ``parts`` gives them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from handrail.network.hosts import Address

Network = IPv4Network | IPv6Network


class AddressClass(enum.Enum):
    """Kinds of addresses, by which switch of the configuration opens them."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    OWN = "own"
    METADATA = "metadata"  # link-local too: where clouds give credentials to what asks
    OTHER = "other"


#: What ``allow_local_binding`` opens.
LOCAL = frozenset((AddressClass.LOOPBACK, AddressClass.PRIVATE, AddressClass.OWN))

#: Addresses that stand for loopback by name, in the order in which they are dialled.
LOCALHOST: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))

# The first that contains an address decides: cloud metadata lies inside of private networks.
_CLASSES: tuple[tuple[AddressClass, tuple[str, ...]], ...] = (
    (
        AddressClass.METADATA,
        (
            "169.254.0.0/16",
            "fe80::/10",
            "168.63.129.16/32",
            "100.100.100.200/32",
            "192.0.0.192/32",
            "fd00:ec2::/32",
            "fd20:ce::254/128",
            "fd00:c1::a9fe:a9fe/128",
            "fd00:42::42/128",
        ),
    ),
    (AddressClass.LOOPBACK, ("127.0.0.0/8", "::1/128")),
    (
        AddressClass.PRIVATE,
        (
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",
            "fc00::/7",
            "fec0::/10",
        ),
    ),
    (
        AddressClass.OTHER,
        (
            "0.0.0.0/8",
            "::/128",
            "224.0.0.0/4",
            "ff00::/8",
            "240.0.0.0/4",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "2001:db8::/32",
            "2001::/32",
            "100::/64",
            "64:ff9b:1::/48",  # translation for local use: the IPv4 part has no fixed place
        ),
    ),
)


def _table(version: int) -> tuple[tuple[int, int, AddressClass], ...]:
    """First and last address of each network as numbers, with its class."""
    rows = []
    for kind, texts in _CLASSES:
        for text in texts:
            if (6 if ":" in text else 4) == version:
                network = IPv6Network(text) if version == 6 else IPv4Network(text)
                first, last = network.network_address, network.broadcast_address
                rows.append((int(first), int(last), kind))
    return tuple(rows)


#: The kernel connects to loopback for any of them.
_THIS = IPv4Network("0.0.0.0/8")
_TABLES = {4: _table(4), 6: _table(6)}


def classify(address: Address, own: Collection[Address] = ()) -> AddressClass:
    """The class of one address by itself; ``own`` are the addresses of this machine."""
    number = int(address)
    for first, last, kind in _TABLES[address.version]:
        if first <= number <= last:
            return kind
    return AddressClass.OWN if address in own else AddressClass.PUBLIC


def is_here(address: Address, own: Collection[Address]) -> bool:
    """Whether a connection to the address stays on this machine."""
    return any(
        part in own or part.is_unspecified or classify(part) is AddressClass.LOOPBACK
        for part in parts(address)
    ) or any(part in _THIS for part in parts(address) if part.version == 4)


def parts(address: Address) -> tuple[Address, ...]:
    """The address, and the IPv4 address that it carries; only that one when it is mapped."""
    if isinstance(address, IPv4Address):
        return (address,)
    number = int(address)
    low = IPv4Address(number & 0xFFFFFFFF)
    above = number >> 32
    if above == 0xFFFF:
        return (low,)
    if above == 0 and number > 1:  # compatible; 0 and 1 are addresses of their own
        return (address, low)
    if above in (0xFFFF0000, 0x0064FF9B << 64):  # translated, NAT64
        return (address, low)
    if number >> 112 == 0x2002:  # 6to4
        return (address, IPv4Address(number >> 80 & 0xFFFFFFFF))
    return (address,)
