"""One connection on standard input and output, one message a line.

``disconnected("end of input")`` comes after the last message was delivered and after the
replies that were queued by then were written (or the reader stopped taking them).
"""

from __future__ import annotations

import os

from handrail.transport.base import Receiver, Transport
from handrail.transport.fd_transport import Descriptor, DescriptorTransport
from handrail.transport.line_framing import LineConnection
from handrail.transport.message_limits import LINE_LIMIT


class StdioConnection(LineConnection):
    kind = "stdio"

    __slots__ = ()


async def open_stdio(receiver: Receiver, *, stdin_fd: int = 0, stdout_fd: int = 1) -> Transport:
    """Exchange lines on two fds of any kind: pipes, sockets, files, a terminal.

    They stay open and belong to the caller, which also decides what else writes to ``stdout_fd``.
    """
    reader = Descriptor(stdin_fd, os.O_RDONLY)
    try:
        writer = Descriptor(stdout_fd, os.O_WRONLY)
    except BaseException:
        reader.close()
        raise
    transport = DescriptorTransport(reader, writer)
    connection = StdioConnection(receiver, "stdio", limit=LINE_LIMIT)
    connection.open(transport)
    transport.resume_reading()
    return connection
