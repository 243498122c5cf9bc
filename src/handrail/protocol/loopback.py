"""Shapes of ``loopback/*``: connections to what listens in the network that processes share.  Ours.

A client reads and writes a connection by requests, one of each at a time, so that neither side has
to hold more than one piece.  Connections end with the line they were made on.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from handrail.protocol.struct_base import Wire

Port = Annotated[int, Meta(ge=1, le=65_535)]
#: One piece at most.
LARGEST = 256 * 1024


class ConnectParams(Wire):
    """Connect to a port at 127.0.0.1 or ::1."""

    #: As in ``process/start``; networks of that name are tried in the order they were made.
    loopback: str
    port: Port
    #: Chosen by the client; names the connection from now on.
    connection_id: str


class ConnectionParams(Wire):
    """One connection by its id."""

    connection_id: str


class WriteParams(Wire):
    """Bytes for the process; answered when the kernel has taken all of them."""

    connection_id: str
    #: Base64.
    chunk: str = ""
    #: Nothing follows: the process reads to the end, and may go on writing.
    end: bool = False


class ReadResult(Wire):
    """What the process has written, at least a byte; answered when there is some."""

    #: Base64.
    chunk: str
    #: The process writes nothing more.
    end: bool
