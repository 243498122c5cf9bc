"""Start the porter: ``__main__.py LINK RING``, the numbers of two descriptors."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket

from handrail.keeper import hardening
from handrail.network.porter.service import Porter
from handrail.network.records import Ring


def main(argv: list[str]) -> None:
    """Serve until the server says STOP, or the link has no other end any more."""
    link_fd, ring_fd = (int(word) for word in argv)
    os.set_inheritable(link_fd, False)
    os.set_inheritable(ring_fd, False)
    os.chdir("/")
    hardening.ignore_terminal()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    hardening.become_private()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # a connection leaves no garbage that only cycles hold
    link = socket.socket(fileno=link_fd)
    link.setblocking(False)
    asyncio.run(Porter(link, Ring(ring_fd), dict(os.environ)).run())
    # Threads of the resolver may hang for long; nothing is left to do.
    os._exit(0)
