"""What a client has received for certain, for processes with ``onLag: block``.

A message that was sent may be lost with its connection, and with it output that is retained
nowhere else.  So such a process continues only when the client has *received* its output.  The
client has to do nothing for that: the transport confirms what has arrived, and ``process/read``
with ``afterSeq`` says the same.
"""

from __future__ import annotations

from handrail.process.child import Child, Sink
from handrail.transport.base import Transport

#: Bytes sent before a confirmation is requested; well below what a process may have unread.
ASK_EVERY = 128 * 1024


class DeliveryAcks:
    """Output sent to one client and not confirmed yet."""

    __slots__ = ("_sent", "_sink", "_size", "_transport")

    def __init__(self, transport: Transport, sink: Sink) -> None:
        self._transport = transport
        self._sink = sink
        self._sent: dict[Child, tuple[int, int]] = {}
        self._size = 0

    def notified(self, child: Child, seq: int, size: int) -> None:
        """The next event of a process was sent; they are sent in order."""
        first, _ = self._sent.get(child, (seq, 0))
        self._sent[child] = (first, seq)
        self._size += size
        if self._size >= ASK_EVERY:
            self.ask()

    def ask(self) -> None:
        """Have the transport confirm what was sent."""
        if self._sent:
            sent, self._sent = self._sent, {}
            self._size = 0
            self._transport.confirm(lambda: self._received(sent))

    def answered(self, child: Child, first: int, last: int) -> None:
        """Events with these sequence numbers were sent as an answer."""
        if first <= last:
            self._transport.confirm(lambda: self._received({child: (first, last)}))

    def _received(self, sent: dict[Child, tuple[int, int]]) -> None:
        for child, (first, last) in sent.items():
            # A connection that lost its session cannot confirm for the one that took it.
            if child.sink is self._sink:
                child.output.acknowledge(first, last)
