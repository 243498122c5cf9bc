"""The connected servers, and the messages they have not received yet.

A server that sleeps never stops us: what it does not take at once waits here, with copies of
the descriptors that go with it.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque

from handrail.keeper import messages, own_fds


class ServerLink:
    """One connected server, and the messages it has not received yet."""

    def __init__(self, sock: socket.socket, proven: bool = True) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.proven = proven  # it knows our secret, or we have none
        self.nonces = (b"", b"")  # its own and ours, while it proves that
        self.waiting: deque[tuple[int, int, list[bytes], list[int]]] = deque()


class ServerLinks(dict[int, ServerLink]):
    """All links, by their fd."""

    def __init__(self, poll: select.poll) -> None:
        super().__init__()
        self.poll = poll

    def add(self, sock: socket.socket, proven: bool = True) -> None:
        self[sock.fileno()] = ServerLink(sock, proven)
        self.poll.register(sock.fileno(), select.POLLIN)

    def remove(self, fd: int) -> None:
        gone = self.pop(fd)
        self.poll.unregister(fd)
        for _, _, _, fds in gone.waiting:
            for passed in fds:
                os.close(passed)
        gone.sock.close()

    def say(
        self, fd: int, op: int, serial: int, fields: list[bytes], fds: list[int] | None = None
    ) -> None:
        """Send now, or when the server reads again: a server that is stopped never blocks the
        keeper.

        Raises OSError when there is no descriptor free for a copy that has to wait.
        """
        to = self.get(fd)
        if to is None:
            return
        if not to.waiting:
            try:
                messages.send(to.sock, op, serial, fields, fds or ())
                return
            except ConnectionError:
                return  # the end of the link is seen by the poll
            except OSError:  # full, or too many descriptors are on their way
                self.poll.modify(fd, select.POLLIN | select.POLLOUT)
        # Copies: what we hold may be dropped before the server comes back.
        to.waiting.append((op, serial, fields, own_fds.copies(fds or ())))

    def flush(self, fd: int) -> None:
        to = self[fd]
        try:
            while to.waiting:
                op, serial, fields, fds = to.waiting[0]
                messages.send(to.sock, op, serial, fields, fds)
                to.waiting.popleft()
                for passed in fds:
                    os.close(passed)
        except ConnectionError:
            pass
        except OSError:
            return
        self.poll.modify(fd, select.POLLIN)
