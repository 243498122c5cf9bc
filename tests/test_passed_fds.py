"""Descriptors that are received."""

from __future__ import annotations

import os
import socket

from handrail import passed_fds


def test_no_started_program_inherits_them() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "rb") as null:
        socket.send_fds(theirs, [b"hello"], [null.fileno(), null.fileno()])
        said, fds = passed_fds.receive(ours, 16, 2)
        try:
            assert (said, len(fds)) == (b"hello", 2)
            assert not any(map(os.get_inheritable, fds))
        finally:
            for fd in fds:
                os.close(fd)
