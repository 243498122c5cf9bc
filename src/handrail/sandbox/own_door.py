"""Whether an Internet address is one at which we ourselves take orders.

A command with an open network could otherwise knock at the server that contains it and have it
start another that nothing contains.
"""

from __future__ import annotations

import socket
import sys

from handrail.sandbox import notices

_FAMILIES = {int(socket.AF_INET): socket.AF_INET, int(socket.AF_INET6): socket.AF_INET6}
_ports: set[int] = set()


def keep_from_commands(port: int) -> None:
    """From now on whoever starts commands listens on this port."""
    _ports.add(port)


def is_ours(address: bytes) -> bool:
    """Whether whoever connects to this ``sockaddr`` would come to us."""
    if not _ports or int.from_bytes(address[2:4], "big") not in _ports:
        return False
    family = _FAMILIES.get(int.from_bytes(address[:2], sys.byteorder))
    if family is None:
        return False
    # Only an address of this machine can be bound to.
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        return notices.bind(probe.fileno(), address[:2] + bytes(2) + address[4:]) == 0
