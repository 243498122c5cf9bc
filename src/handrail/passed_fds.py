"""Receives descriptors that no program which is started meanwhile inherits.

``socket.recv_fds`` drops its flags in Python 3.11, MSG_CMSG_CLOEXEC among them.
"""

from __future__ import annotations

import array
import socket


def receive(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """A message of at most ``size`` bytes, and the descriptors passed with it; raises OSError."""
    space = socket.CMSG_LEN(most * array.array("i").itemsize)
    said, ancillary, _, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return said, list(fds)
