"""One connection of a command, from its first byte to its end.

Most need to wait for nothing until their tunnel is open: a CONNECT comes in one piece, to an
address on a list.  They are served without a task, which is made where one has to wait.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

from handrail.network import decide, heads
from handrail.network import refusal_replies as replies
from handrail.network.decide import Kind, Target
from handrail.network.hosts import Address
from handrail.network.porter import dialer, http_proxy, socks_proxy, upstream
from handrail.network.porter.client_program import UNKNOWN
from handrail.network.porter.decisions import Decision
from handrail.network.porter.dialer import DialFailed
from handrail.network.porter.far_end import FarEnd, Refused
from handrail.network.porter.relay import Relay
from handrail.network.porter.streams import Stream, peer_address
from handrail.network.socks import VERSION as SOCKS_VERSION

if TYPE_CHECKING:
    from handrail.network.porter.process import ManagedProcess
    from handrail.network.porter.service import Porter

#: Of a client that is silent; the kernel has waited for another second before it was accepted.
FIRST_BYTE_SECONDS = 9.0
#: Longer heads are not remembered.
_SHORT_HEAD = 1024


class Connection:
    """An accepted connection."""

    def __init__(
        self, porter: Porter, process: ManagedProcess, sock: socket.socket, number: int
    ) -> None:
        sock.setblocking(False)
        self.loop = porter.loop
        self.client = Stream(sock, self.loop)
        self.process = process
        self.number = number
        self._porter = porter
        self._task: asyncio.Task[None] | None = None
        self._way: FarEnd | None = None
        self._relay: Relay | None = None
        #: Was made and recorded for the first request before a task had to go on with it.
        self._decision: Decision | None = None

    def begin(self) -> None:
        """Serve it: at once as far as nothing has to be waited for, then in a task."""
        try:
            if self._connect_at_once():
                return
        except BlockingIOError:
            pass  # nothing has come
        except OSError:
            self._end()
            return
        except BaseException:
            self._end()
            raise
        self._task = self.loop.create_task(self._serve())
        self._task.add_done_callback(self._served)

    def cancel(self) -> None:
        """Break it."""
        if self._relay is not None:
            self._relay.stop("ended")
        elif self._task is not None:
            self._task.cancel()

    def _connect_at_once(self) -> bool:
        """Open a tunnel if that takes no waiting; raises OSError."""
        data = self.client.rest = self.client.take()
        end = data.find(b"\r\n\r\n", 0, _SHORT_HEAD) + 4
        if end < 4 or not data.startswith(b"CONNECT "):
            return False
        request = heads.parse_connect(data[:end])
        if request is None:
            return False
        decision = self.process.decisions.find(request.target)
        if decision is None or not decision.is_here:
            return False
        self._record(decision)
        self._decision = decision
        begun = time.monotonic()
        sock = dialer.connect_here(decision.verdict.dial[0], request.target.port)
        if sock is None:
            return False  # refused, or full: the task tries again, and waits
        self.client.rest = data[end:]
        way = FarEnd(self, Stream(sock, self.loop), decision)
        way.begin(decision, self._dialled(begun))
        self.tunnel(way, replies.ESTABLISHED)
        return True

    def _end(self) -> None:
        self.client.close()
        self._porter.ended(self)

    def _served(self, task: asyncio.Task[None]) -> None:
        if self._relay is None:
            self._end()
        if not task.cancelled() and task.exception() is not None:
            self.loop.call_exception_handler(
                {"message": "a connection has failed", "exception": task.exception()}
            )

    async def _serve(self) -> None:
        """Serve until the connection has ended, or a relay carries it."""
        try:
            data = await self._first_bytes()
            if not data:
                return
            self.client.rest = data
            if data[0] == SOCKS_VERSION:
                await socks_proxy.serve(self)
            else:
                await http_proxy.serve(self)
        except (OSError, TimeoutError):
            pass  # the client is gone, or did not say what it wants

    async def _first_bytes(self) -> bytes:
        try:
            return self.client.take()  # it was accepted because they are there
        except BlockingIOError:
            async with asyncio.timeout(FIRST_BYTE_SECONDS):
                return await self.client.read()

    async def open(self, target: Target) -> FarEnd:
        """Decide, record and connect; raises Refused or DialFailed."""
        decision, self._decision = self._decision, None
        proxy = None
        if decision is None:
            inside = await self._inside(target)
            if inside is not None:
                return FarEnd(self, Stream(inside, self.loop), None, inside=True)
            if self.process.policy.config.allow_upstream_proxy:
                proxy = self._porter.upstreams.find(target)
            decision = await self._decide(target, through_upstream=proxy is not None)
        verdict = decision.verdict
        if verdict.kind is Kind.UNREACHABLE:
            raise dialer.NO_NAME
        if verdict.kind is not Kind.ALLOW:
            raise Refused(verdict)
        begun = time.monotonic()
        try:
            way = await self._dial(target, decision, proxy)
        except DialFailed as error:
            took = self._dialled(begun)
            self.record_end(
                decision, milliseconds=int(took * 1000), outcome=error.why, dialled=took
            )
            raise
        way.begin(decision, self._dialled(begun))
        return way

    async def _decide(
        self,
        target: Target,
        *,
        through_upstream: bool,
        known: tuple[Address, ...] | None = None,
    ) -> Decision:
        """Decide, and record it before anything is told or sent; a refusal with its program."""
        decision = None if through_upstream or known else self.process.decisions.find(target)
        if decision is None:
            verdict = await self.process.decide(
                target, self.client.sock, through_upstream=through_upstream, known=known
            )
            program = UNKNOWN
            if verdict.kind is not Kind.ALLOW:
                program = await self.process.program(self.client.sock)
            decision = Decision(self.process.key, target, verdict, program)
        self._record(decision)
        return decision

    def _record(self, decision: Decision) -> None:
        self._porter.metrics.count(decision.counted)
        self._porter.write_record(decision.recorded.begun(self.number))

    def _dialled(self, begun: float) -> float:
        """Count how long it took to connect, or to fail."""
        seconds = time.monotonic() - begun
        metrics = self._porter.metrics
        metrics.wait(metrics.dialled, seconds)
        return seconds

    async def _dial(
        self,
        target: Target,
        decision: Decision,
        proxy: upstream.UpstreamProxy | upstream.BadUpstream | None,
    ) -> FarEnd:
        if proxy is None:
            sock = await dialer.dial(decision.verdict.dial, target.port)
            return FarEnd(self, Stream(sock, self.loop), decision)
        if target.protocol == decide.HTTP and isinstance(proxy, upstream.UpstreamProxy):
            sock = await upstream.connect(proxy, self.process.resolver)
            return FarEnd(self, Stream(sock, self.loop), decision, proxy)
        sock, early = await upstream.tunnel(proxy, self.process.resolver, target)
        far = Stream(sock, self.loop)
        far.rest = early
        return FarEnd(self, far, decision)

    async def recheck(self, target: Target, way: FarEnd) -> None:
        """Decide on a further request over a way that is open; raises Refused.

        The lists may have changed since; what is connected is the address that is judged.
        """
        if way.inside:
            return
        known = None if way.proxy else (peer_address(way.far.sock),)
        decision = await self._decide(target, through_upstream=way.proxy is not None, known=known)
        if decision.verdict.kind is not Kind.ALLOW:
            raise Refused(decision.verdict)
        way.begin(decision, None)

    def tunnel(self, way: FarEnd, greeting: bytes) -> None:
        """Tell the client that it is connected, then have both ways relayed until they end."""
        self._way = way
        early, self.client.rest = self.client.rest, b""
        back, way.far.rest = way.far.rest, b""
        relay = Relay(self._porter.readiness, self.client.sock, way.far.sock, self._relayed)
        self._relay = relay
        relay.begin(greeting, early, back)

    def _relayed(self, relay: Relay, outcome: str) -> None:
        way, self._way = self._way, None
        if way is not None:
            way.ended(relay.client.got, relay.far.got, outcome)
        self._porter.ended(self)

    async def _inside(self, target: Target) -> socket.socket | None:
        inside = self.process.inside
        if inside is None or not decide.leads_inside(self.process.policy, target):
            return None
        return await inside.connect(target.host, target.port)

    def count(self, sent: int, received: int) -> None:
        """Add the bytes of a way that has ended."""
        self._porter.metrics.sent += sent
        self._porter.metrics.received += received

    def record_end(
        self,
        decision: Decision,
        *,
        sent: int = 0,
        received: int = 0,
        milliseconds: int,
        outcome: str,
        dialled: float | None,
    ) -> None:
        """Record how an allowed connection or request ended."""
        self._porter.write_record(
            decision.recorded.ended(self.number, sent, received, milliseconds, outcome, dialled)
        )
