"""Carry bytes both ways between two connected sockets until both ways have ended.

One buffer for all tunnels: what was read is sent at once.  What the other end does not take is
held, and nothing more is read for it.  The end of one way is passed on, and the other way goes on.
A way that has filled the buffer goes on through a pipe, which saves both copies.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from handrail.network.porter.kernel_pipe import KernelPipe
from handrail.network.porter.readiness import READ, WRITE, Readiness

#: The most that is held for an end that does not read.
HELD = 256 * 1024
#: So many full pieces of one tunnel are carried before others have their turn.
_PIECES = 4

_pipe = KernelPipe(HELD)
_buffer = bytearray(HELD)
_view = memoryview(_buffer)


class Relay:
    """Both ways of a tunnel; closes both sockets at its end."""

    __slots__ = ("_ended", "_left", "client", "far")

    def __init__(
        self,
        readiness: Readiness,
        client: socket.socket,
        far: socket.socket,
        ended: Callable[[Relay, str], None],
    ) -> None:
        """``ended`` is told once how it ended, before the sockets are closed."""
        self._ended: Callable[[Relay, str], None] | None = ended
        self._left = 2
        self.client = _End(self, readiness, client)
        self.far = _End(self, readiness, far)
        self.client.other, self.far.other = self.far, self.client

    def begin(self, greeting: bytes, early: bytes, back: bytes) -> None:
        """Greet the client, send on what was read from each end, and relay from then on."""
        self.client.got, self.far.got = len(early), len(back)
        for end, data in ((self.client, greeting + back), (self.far, early)):
            if data and self._ended is not None:
                end.give(data)
        if self._ended is not None:
            self.client.look()
            self.far.look()

    def way_ended(self, end: _End) -> None:
        """Nothing more comes from one end."""
        self._left -= 1
        if self._left:
            try:
                end.other.sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                self.failed(error)
        else:
            self.stop("closed")

    def failed(self, error: OSError) -> None:
        """One end is gone: no way goes on."""
        self.stop("reset" if isinstance(error, ConnectionError) else "failed")

    def stop(self, outcome: str) -> None:
        """End both ways now."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self, outcome)
            self.client.close()
            self.far.close()


class _End:
    """One socket, and what is held for it."""

    __slots__ = (
        "_events",
        "_fd",
        "_is_over",
        "_readiness",
        "_relay",
        "got",
        "held",
        "other",
        "sock",
    )

    other: _End

    def __init__(self, relay: Relay, readiness: Readiness, sock: socket.socket) -> None:
        self._relay = relay
        self._readiness = readiness
        self.sock = sock
        self._fd = sock.fileno()
        #: What the descriptor is watched for now.
        self._events = 0
        #: What it has not taken yet.
        self.held = b""
        #: Whether nothing more comes from it.
        self._is_over = False
        #: Bytes that came from it.
        self.got = 0

    def look(self) -> None:
        """Watch for what can be done now: reading, unless the other end is full, and writing."""
        events = 0 if self._is_over or self.other.held else READ
        if self.held:
            events |= WRITE
        if events == self._events:
            return
        if not events:
            self._readiness.forget(self._fd)  # its end would be told again and again
        elif self._events:
            self._readiness.change(self._fd, events)
        else:
            self._readiness.watch(self._fd, events, self.ready)
        self._events = events

    def ready(self, events: int) -> None:
        """Do what the descriptor is ready for."""
        if self.held:
            self._flush()
        if events & ~WRITE and self._events & READ:
            self._read()

    def _read(self) -> None:
        """Carry what has come; a full piece is followed by others while they are full."""
        size = self._copy()
        for _ in range(_PIECES - 1):
            # Else it was the last that has come, the other end is full, or the tunnel has ended.
            if size < HELD or not self._events & READ:
                return
            size = self._copy() if _pipe.is_unusable else self._pass_on()

    def _copy(self) -> int:
        """Carry a piece through our buffer; its size."""
        try:
            size = self.sock.recv_into(_buffer)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._relay.failed(error)
            return 0
        self._came(size)
        if size:
            self.other.give(_view[:size])
        return size

    def _pass_on(self) -> int:
        """Carry a piece within the kernel; its size."""
        try:
            size, left = _pipe.move(self._fd, self.other.sock.fileno())
        except BlockingIOError:
            return 0
        except OSError as error:
            self._relay.failed(error)
            return 0
        self._came(size)
        if left:
            self.other.hold(left)
        return size

    def _came(self, size: int) -> None:
        """Count a piece; an empty one is the end of this way."""
        self.got += size
        if size:
            return
        self._is_over = True
        self._relay.way_ended(self)
        if self._fd >= 0:
            self.look()

    def give(self, data: bytes | memoryview) -> None:
        """Send bytes to this end; what it does not take now is held."""
        try:
            taken = self.sock.send(data)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            self._relay.failed(error)
            return
        if taken < len(data):
            self.hold(bytes(data[taken:]))

    def hold(self, data: bytes) -> None:
        """Hold what this end did not take; nothing more is read for it meanwhile."""
        self.held = data
        self.look()
        self.other.look()

    def _flush(self) -> None:
        try:
            taken = self.sock.send(self.held)
        except BlockingIOError:
            return
        except OSError as error:
            self._relay.failed(error)
            return
        self.held = self.held[taken:]
        if not self.held:
            self.look()
            self.other.look()

    def close(self) -> None:
        """Close the socket."""
        self._readiness.closing(self._fd)
        self._events, self._fd = 0, -1
        self.sock.close()
        del self._relay, self.other  # no cycle is left to the garbage collector
