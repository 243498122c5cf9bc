"""One canonical form for every host: judged, asked about, recorded and dialled is this value.

A host comes from a request target, an authority or a SOCKS address, and is read here once, before
anything else.  Addresses in every spelling that a C library takes (``127.1``, ``0x7f000001``,
``::ffff:127.0.0.1``) become one text; what is neither an address nor a name is refused, so that no
second parser (a resolver, an origin) can read it differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address

LONGEST_NAME = 253

_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")
_NUMBER = re.compile(r"0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*")


class BadHost(ValueError):
    """The text names no host and port; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host in canonical form; ``address`` is None for a name."""

    text: str
    address: Address | None = None

    @property
    def bracketed(self) -> str:
        """The host as an authority has it."""
        return f"[{self.text}]" if isinstance(self.address, IPv6Address) else self.text

    @property
    def is_localhost(self) -> bool:
        """Whether the name stands for loopback without any look-up."""
        return self.text == "localhost" or self.text.endswith(".localhost")


def canonical(text: str) -> Host:
    """Read one host; raises BadHost."""
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
        if ":" not in text:
            raise BadHost("brackets are for IPv6 addresses only")
    if not _HOST.fullmatch(text):
        raise BadHost("a host has letters, digits, dots, hyphens and underscores only")
    if ":" in text:
        return of_address(_ipv6(text))
    name = text.removesuffix(".").lower()
    if len(name) > LONGEST_NAME:
        raise BadHost(f"a host name has at most {LONGEST_NAME} bytes")
    labels = name.split(".")
    if is_numeric(labels[-1]):
        return of_address(_ipv4(labels))
    if not all(map(_LABEL.fullmatch, labels)):
        raise BadHost("each label has 1 to 63 bytes and no hyphen at an end")
    return Host(name)


@lru_cache(1024)  # a connection wants it several times
def of_address(address: Address) -> Host:
    """The host of an address; IPv4 in IPv6 becomes IPv4."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return Host(str(address), address)


def is_numeric(label: str) -> bool:
    """Whether a last label makes the host an IPv4 address, or nothing at all."""
    return label.isdecimal() or label.startswith("0x")


def checked_port(port: object) -> int:
    """A port from 1 to 65535; raises BadHost."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise BadHost("a port is a number from 1 to 65535")
    return port


def split_authority(text: str) -> tuple[str, int | None]:
    """Host and port of ``host[:port]``, the host not yet read; raises BadHost."""
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadHost("brackets are for IPv6 addresses only")
        host, colon, port = f"[{inside}]", rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise BadHost("an IPv6 address with a port is written in brackets")
    if not colon:
        return host, None
    return host, read_port(port)


def read_port(text: str) -> int:
    """A port in decimal digits; raises BadHost."""
    if not _PORT.fullmatch(text):
        raise BadHost("a port is a number from 1 to 65535")
    return checked_port(int(text))


def _ipv6(text: str) -> IPv6Address:
    try:
        return IPv6Address(text)
    except AddressValueError:
        raise BadHost("what has a colon is an IPv6 address, and this is none") from None


def _ipv4(labels: list[str]) -> IPv4Address:
    """An address in any form of ``inet_aton``: the last number fills what is left."""
    if len(labels) > 4 or not all(map(_NUMBER.fullmatch, labels)):
        raise BadHost("a host that ends with a number is an IPv4 address, and this is none")
    numbers = [_number(label) for label in labels]
    *front, last = numbers
    if any(number > 255 for number in front) or last >= 256 ** (5 - len(numbers)):
        raise BadHost("a number of the IPv4 address is too large")
    value = last
    for place, number in enumerate(front):
        value |= number << 8 * (3 - place)
    return IPv4Address(value)


def _number(digits: str) -> int:
    if digits.startswith("0x"):
        return int(digits, 16)
    return int(digits, 8 if digits.startswith("0") else 10)
