"""Whether an Internet address is one that this very process listens on.

A command with an open network could otherwise knock at the server that contains it and have it
start another that nothing contains.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import time

from handrail.sandbox import notices

#: What we listen on is looked up again after so many seconds.
_SECONDS = 1.0
_FAMILIES = {int(socket.AF_INET): socket.AF_INET, int(socket.AF_INET6): socket.AF_INET6}

_known: tuple[float, frozenset[int]] = (0.0, frozenset())


def is_ours(address: bytes) -> bool:
    """Whether whoever connects to this ``sockaddr`` would come to us."""
    family = _FAMILIES.get(int.from_bytes(address[:2], sys.byteorder))
    port = int.from_bytes(address[2:4], "big")
    return family is not None and port in _ports() and _is_here(family, address)


def _is_here(family: socket.AddressFamily, address: bytes) -> bool:
    """Whether it is an address of this machine: only those can be bound to."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        return notices.bind(probe.fileno(), address[:2] + bytes(2) + address[4:]) == 0


def _ports() -> frozenset[int]:
    global _known  # of this process
    now = time.monotonic()
    if now >= _known[0]:
        _known = (now + _SECONDS, frozenset(_listening()))
    return _known[1]


def _listening() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            copy = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        try:
            with socket.socket(fileno=copy) as sock:
                if sock.family in _FAMILIES and sock.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    found.append(int(sock.getsockname()[1]))
        except OSError:
            continue  # another descriptor by now
    return found
