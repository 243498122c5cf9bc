"""Connections from outside to what listens in networks that commands share."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from handrail.network.hosts import Host
from handrail.network.porter.sandbox_loopback import SandboxLoopback

#: Tried in this order: most programs listen on the first.
_ADDRESSES = (Host("127.0.0.1", IPv4Address("127.0.0.1")), Host("::1", IPv6Address("::1")))


class Namespace(Protocol):
    """A network that commands share (``sandbox/loopback.py``)."""

    #: Its descriptor; -1 once it is closed.
    fd: int


class LoopbackReach:
    """Connects to networks of one owner; keeps a few spare sockets of each."""

    def __init__(self) -> None:
        self._insides: dict[Namespace, SandboxLoopback] = {}

    async def connect(self, networks: Iterable[Namespace], port: int) -> socket.socket:
        """A connection to the first that has a listener there; raises ConnectionRefusedError."""
        for network in networks:
            for host in _ADDRESSES:
                found = await self._inside(network).connect(host, port)
                if found is not None:
                    return found
        raise ConnectionRefusedError(f"no command listens on port {port} of its loopback")

    def _inside(self, network: Namespace) -> SandboxLoopback:
        found = self._insides.get(network)
        if found is None:
            for gone in [one for one in self._insides if one.fd < 0]:
                self._insides.pop(gone).close()
            found = self._insides[network] = SandboxLoopback(os.dup(network.fd), None)
        return found

    def close(self) -> None:
        """Close the spare sockets; connections go on."""
        while self._insides:
            self._insides.popitem()[1].close()
