"""The contract between a transport, which moves messages, and a receiver, which understands them.

Callbacks, not coroutines: a message goes from the socket to its handler without a task or a queue
in between, and output goes back the same way.  Everything here is called on the event loop's thread
and nothing may block.

A ``Transport`` moves whole messages and understands none.  A ``Receiver`` is the other half: the
server's connection, a client, a test.  Order: ``connected`` once, then any number of ``message`` /
``pause_writing`` / ``resume_writing``, then ``disconnected`` exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Close codes of RFC 6455 that we use.  Transports without codes ignore them.
CLOSE_OK = 1000
CLOSE_GOING_AWAY = 1001
CLOSE_PROTOCOL_ERROR = 1002
CLOSE_INVALID_TEXT = 1007
CLOSE_POLICY = 1008
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011
CLOSE_RESTART = 1012


class Transport(Protocol):
    """One open connection to one peer."""

    #: "websocket", "stdio", "unix" or "memory"; a label for logs and metrics.
    kind: str
    #: The other end, for logs: an address, "uid 1000", "stdio".
    peer: str

    def send(self, *parts: bytes) -> None:
        """Send one message, given in parts that are not joined first.  Never blocks.

        What the peer does not take is queued; the receiver is told to pause when the queue grows
        beyond HIGH_WATER.  After ``close``, ``abort`` or a lost connection this does nothing.
        """

    def begin(self) -> None:
        """Begin a message that is sent in pieces over time, because it is too large to hold.

        Until its last piece is sent, other messages wait.
        """

    def piece(self, data: bytes, *, last: bool = False) -> None:
        """Send the next piece of the message that was begun."""

    @property
    def buffered(self) -> int:
        """Bytes handed over and not yet taken by the kernel."""

    def gather(self, seconds: float = 0.0) -> None:
        """Write what is sent from now on in one piece: by ``write_gathered``, or when this turn of
        the loop ends, or after so many seconds."""

    def write_gathered(self) -> None:
        """Write what was gathered."""

    def confirm(self, received: Callable[[], None]) -> None:
        """Call back once the peer has everything that was sent until now.

        Never called when the connection is lost first.  If the transport has no acknowledgement,
        what the kernel has taken counts: the peer can read it even if this process dies.
        """

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self, code: int = CLOSE_OK, reason: str = "") -> None:
        """Send what is queued and the reason, and close; a peer that does not follow is dropped."""

    def abort(self) -> None:
        """Drop the connection now."""


class Receiver(Protocol):
    """Receives the messages of one transport."""

    def connected(self, transport: Transport) -> None: ...

    def message(self, data: str | bytes | bytearray) -> None:
        """One message.  ``str`` when the transport has validated it as UTF-8 text."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def disconnected(self, why: str) -> None:
        """The connection is gone; ``why`` is one sentence for the log."""
