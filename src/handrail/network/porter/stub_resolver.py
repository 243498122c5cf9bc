"""A name server inside that knows no name: what ignores the proxy fails at once, and visibly.

NXDOMAIN, because after other errors programs ask again.  Nothing is forwarded.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable

_LONGEST = 4096
_NO_SUCH_NAME = 3
_RESPONSE = 0x8000
_KEPT_FLAGS = 0x7900  # operation, recursion desired
_RECURSION_AVAILABLE = 0x0080
#: Names of one process that are recorded; a program may ask for as many as it likes.
_MOST_NAMES = 256
_AT_ONCE = 64
#: What no name of a host has.
_ODD = re.compile(r"[^a-z0-9._-]")


class StubResolver:
    """Answers on one UDP socket; ``resolved`` gets each name once."""

    def __init__(self, sock: socket.socket, resolved: Callable[[str], None]) -> None:
        self.sock = sock
        self._resolved = resolved
        self._names: set[str] = set()
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock, self._answer)

    def close(self) -> None:
        """Stop answering."""
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()

    def _answer(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                query, sender = self.sock.recvfrom(_LONGEST)
            except OSError:
                return
            found = answer(query)
            if found is None:
                continue
            name, reply = found
            if name not in self._names and len(self._names) < _MOST_NAMES:
                self._names.add(name)
                self._resolved(name)
            try:
                self.sock.sendto(reply, sender)
            except OSError:
                continue  # as good as lost on its way


def answer(query: bytes) -> tuple[str, bytes] | None:
    """The name that is asked for, and the answer; None for what is no question.  Pure."""
    if len(query) < 12 or query[2] & 0x80 or query[4:6] != b"\0\1":
        return None
    labels = []
    at = 12
    while at < len(query) and query[at]:
        size = query[at]
        if size > 63 or at + 1 + size >= len(query):
            return None
        labels.append(query[at + 1 : at + 1 + size])
        at += 1 + size
    end = at + 5
    if not labels or end > len(query) or at - 12 > 254:
        return None
    flags = int.from_bytes(query[2:4], "big") & _KEPT_FLAGS
    flags |= _RESPONSE | _RECURSION_AVAILABLE | _NO_SUCH_NAME
    name = b".".join(labels).decode("latin-1").lower()
    head = query[:2] + flags.to_bytes(2, "big") + b"\0\1" + bytes(6)
    return _shown(name), head + query[12:end]


def _shown(name: str) -> str:
    """The name as messages show it; a name that is a sentence of the command is not shown."""
    return _ODD.sub("?", name)
