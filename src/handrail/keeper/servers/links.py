"""The connected servers, and the messages they have not received yet.

A server that sleeps never stops us: what it does not take at once waits here, with copies of
the descriptors that go with it.  A long answer is made as it is taken, one message at a time
(`pour`): copies of the descriptors of all children would be more than a keeper may have.

Starts and exits of a turn in which there are several go out together, at its end (`gather`): each
message by itself would wake a server that is busy with the one before.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator

from handrail.keeper import messages, own_fds
from handrail.keeper.messages import Outgoing
from handrail.keeper.readiness import Readiness

#: A message of a long answer, made when the server takes it, and once more if it did not: in
#: between, its descriptors may be closed and their numbers those of other files.  It gives none if
#: there is nothing to tell any more.
Making = Callable[[], Iterator[Outgoing]]


#: So many messages go out together, the starts of a turn and as many exits: more would only wait.
_GATHER_MOST = 16


class ServerLink:
    """One connected server, and the messages it has not received yet."""

    def __init__(self, sock: socket.socket, proven: bool = True) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.proven = proven  # it knows our secret, or we have none
        self.nonces = (b"", b"")  # its own and ours, while it proves that
        self.waiting: deque[Outgoing] = deque()
        #: To be sent together; with each an fd to close then, and what is done when it cannot be.
        self.gathered: list[tuple[Outgoing, int, Callable[[OSError], None]]] = []
        self.answer: Iterator[Making] | None = None  # what of a long one is not made yet
        self.untaken: Making | None = None  # what of it the server did not take

    def following(self) -> Making | None:
        """The next piece of a long answer; None: that was all."""
        if self.answer is None:
            return None
        making, self.untaken = self.untaken or next(self.answer, None), None
        if making is None:
            self.answer = None
        return making


class ServerLinks(dict[int, ServerLink]):
    """All links, by their fd."""

    def __init__(self, poll: Readiness) -> None:
        super().__init__()
        self.poll = poll
        self.several = False  # starts or exits, in this turn
        self.unsent: set[int] = set()  # those for which something is gathered

    def add(self, sock: socket.socket, proven: bool = True) -> None:
        self[sock.fileno()] = ServerLink(sock, proven)
        self.poll.register(sock.fileno(), select.EPOLLIN)

    def remove(self, fd: int) -> None:
        gone = self.pop(fd)
        self.poll.unregister(fd)
        for _, spent, _ in gone.gathered:
            if spent >= 0:
                os.close(spent)
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
        if to.gathered:
            self.send_gathered(fd)
        self._send(to, op, serial, fields, fds or [])

    def gather(
        self,
        fd: int,
        message: Outgoing,
        failed: Callable[[OSError], None],
        *,
        spent: int = -1,
    ) -> None:
        """Send a short message now, or with others at the end of this turn, or earlier.

        Its descriptors are open until then; ``spent`` is closed after it.  ``failed`` is called
        when no descriptor is free for a copy that has to wait.
        """
        to = self.get(fd)
        if to is None:
            if spent >= 0:
                os.close(spent)
            return
        if self.several or to.gathered:
            to.gathered.append((message, spent, failed))
            self.unsent.add(fd)
            if len(to.gathered) >= _GATHER_MOST:
                self.send_gathered(fd)
            return
        try:
            self._send(to, *message)
        except OSError as error:
            failed(error)
        finally:
            if spent >= 0:
                os.close(spent)

    def send_gathered(self, fd: int) -> None:
        """Send what was gathered for a server."""
        self.unsent.discard(fd)
        to = self.get(fd)
        if to is None or not to.gathered:
            return
        parts, to.gathered = to.gathered, []
        sent = self._sent(to, parts) if len(parts) > 1 and not to.waiting else 0
        try:
            for message, _, failed in parts[sent:]:
                try:
                    self._send(to, *message)
                except OSError as error:
                    failed(error)
        finally:
            for _, spent, _ in parts:
                if spent >= 0:
                    os.close(spent)

    def end_turn(self) -> None:
        """Send what was gathered for all servers."""
        for fd in list(self.unsent):
            self.send_gathered(fd)

    def _sent(
        self, to: ServerLink, parts: list[tuple[Outgoing, int, Callable[[OSError], None]]]
    ) -> int:
        """How many of them have gone out in packets of several, or never will."""
        together = [message for message, _, _ in parts]
        sent = 0
        try:
            while sent < len(parts):
                sent += messages.send_many(to.sock, together[sent:])
        except ConnectionError:
            return len(parts)  # the end of the link is seen by the poll
        except OSError:
            pass  # full
        return sent

    def _send(
        self, to: ServerLink, op: int, serial: int, fields: list[bytes], fds: list[int]
    ) -> None:
        fd = to.sock.fileno()
        if not to.waiting:
            try:
                messages.send(to.sock, op, serial, fields, fds)
                return
            except ConnectionError:
                return  # the end of the link is seen by the poll
            except OSError:  # full, or too many descriptors are on their way
                self.poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        # Copies: what we hold may be dropped before the server comes back.
        to.waiting.append((op, serial, fields, own_fds.copies(fds)))

    def pour(self, fd: int, answer: Iterator[Making]) -> None:
        """Send a long answer as the server takes it; other messages may come in between.

        The next message is asked for when the one before has been sent.
        """
        self[fd].answer = answer
        self.poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        self.flush(fd)

    def flush(self, fd: int) -> None:
        to = self[fd]
        try:
            while to.waiting:
                op, serial, fields, fds = to.waiting[0]
                messages.send(to.sock, op, serial, fields, fds)
                to.waiting.popleft()
                for passed in fds:
                    os.close(passed)
            while making := to.following():
                try:
                    for op, serial, fields, fds in making():
                        messages.send(to.sock, op, serial, fields, fds)
                except ConnectionError:
                    raise
                except OSError:  # full: it is made again
                    to.untaken = making
                    return
        except ConnectionError:
            pass  # that server is gone, as the loop sees at its socket
        except OSError:
            return
        self.poll.modify(fd, select.EPOLLIN)

    def make_all(self) -> None:
        """Make the rest of long answers, before another program takes the messages over.

        Raises OSError when no descriptor is free for a copy; what is left is sent as before.
        """
        for to in self.values():
            while making := to.following():
                try:
                    for op, serial, fields, fds in making():
                        to.waiting.append((op, serial, fields, own_fds.copies(fds)))
                except OSError:
                    to.untaken = making
                    raise
