"""The messages between the porter and its server.

One packet on a SOCK_SEQPACKET socket is one message, in the form of the keeper's link: operation,
serial number, then one JSON object; descriptors beside it.  A serial number above 0 asks for an
answer, DONE or FAILED, with the same number.  The keeper holds the server's end too: the porter
notices no server's death, and the next server continues on the same socket after HELLO.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence

from handrail.keeper import messages

VERSION = 1

# What a server says.
HELLO = 1  # version, pid, ports it listens on; answered by WELCOME, then all open questions
ADD = 2  # a process: see porter/process.py; fds by the names in "fds"
LISTEN = 3  # process, fds: sockets that were made later
REMOVE = 4  # process
UPDATE = 5  # session, process?, rules?, approved?, denied?: for all its processes or one, at once
ANSWER = 6  # question, allow, reason, for: None, "process" or "session"
LISTENERS = 7  # answered by GIVEN for each process, then DONE
STATE = 8  # answered by DONE: processes, connections, questions, metrics
STOP = 9

# What a porter says.
WELCOME = 32  # version, pid, processes, written
DONE = 33
FAILED = 34  # error
QUESTION = 35  # question, process, protocol, host, port, method, pid, comm
WITHDRAWN = 36  # question, why
RECORDS = 37  # written: how many records there are
IDLE = 38  # no process for a while: STOP or ADD
GIVEN = 39  # process, fds

#: Names of descriptors that belong to a process.
LISTENER, NETWORK, RESOLVER = "listener", "network", "resolver"

Fields = dict[str, object]


class LinkMessage:
    """One message, received.  Close it: descriptors that were not taken are closed with it."""

    __slots__ = ("_message", "fds", "fields", "op", "serial")

    def __init__(self, message: messages.Message) -> None:
        self._message = message
        self.op = message.op
        self.serial = message.serial
        self.fds = message.fds
        if message.cut:
            message.close()
            raise ValueError("no descriptor was free for those of the message")
        try:
            fields = json.loads(message.fields[0]) if message.fields else {}
        except ValueError:
            message.close()
            raise
        if not isinstance(fields, dict):
            message.close()
            raise ValueError("a message of the porter's link is an object")
        self.fields: Fields = fields

    def close(self) -> None:
        """Close the descriptors that were not taken out of ``fds``."""
        self._message.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new link."""
    return messages.pair()


def send(
    sock: socket.socket,
    op: int,
    fields: Mapping[str, object] | None = None,
    serial: int = 0,
    fds: Sequence[int] = (),
) -> None:
    """Send one message; raises BlockingIOError when the other end does not keep up."""
    body = json.dumps(fields or {}, separators=(",", ":")).encode()
    messages.send(sock, op, serial, (body,), tuple(fds))


def receive(sock: socket.socket) -> LinkMessage | None:
    """The next message; None when the other end is gone.

    Raises BlockingIOError when idle, ValueError for a packet that is no message.
    """
    message = messages.receive(sock)
    return None if message is None else LinkMessage(message)
