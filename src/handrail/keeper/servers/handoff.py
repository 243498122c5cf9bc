"""Hand the keeper over from one server to the next.

``lease.py`` says whose the right is, ``fence.py`` makes sure that the holder before is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from handrail.keeper import messages, waiting_children
from handrail.keeper.children import Children
from handrail.keeper.servers import fence
from handrail.keeper.servers.lease import Lease
from handrail.keeper.servers.links import ServerLinks
from handrail.keeper.servers.orphan_ttl import OrphanWait


class ServerHandoff:
    """The lease, its holder and the servers that claim it."""

    def __init__(
        self,
        links: ServerLinks,
        lease: Lease,
        orphan_wait: OrphanWait,
        children: Children,
        lost: Callable[[int], None],
    ) -> None:
        self.links = links
        self.lease = lease
        self.orphan_wait = orphan_wait
        self.children = children
        self.lost = lost  # called with the link of a holder that was ended
        self.holder: fence.Holder | None = None  # of the lease, or the last that did not let go
        self.claims: list[fence.Claim] = []
        self.lost_at: float | None = None

    def gone(self, fd: int) -> None:
        """Note that a link has ended."""
        self.claims = [claim for claim in self.claims if claim.fd != fd]
        if self.lease.release(fd):
            self.lost_at = time.monotonic()
            self.settle_claims()

    def greet(self, fd: int, serial: int, fields: list[bytes]) -> None:
        """Handle a server's request for the lease."""
        if int(fields[0]) != messages.VERSION:  # what follows may be another version's
            reason = f"{messages.OTHER_VERSION.decode()}{messages.VERSION} of the link"
            self.links.say(fd, messages.REFUSED, serial, [reason.encode()])
        else:
            self.grant(fd, serial, messages.Hello.unpack(fields))

    def grant(self, fd: int, serial: int, hello: messages.Hello) -> None:
        """Give the lease to a server of this version, or say why it has to wait."""
        if self.lease.holder not in (fd, None) and hello.claim:
            self.claim(fd, serial, hello)
            return
        if self.lease.holder not in (fd, None) and self.holder is not None and self.holder.gone:
            # It has been killed, and what it said before that is still to be read.
            self.claims.append(fence.Claim(fd, serial, hello))
            return
        reason = self.lease.ask(fd, hello.pid)
        if reason is None:
            reason = self.follow(fd)
        if reason is not None:
            self.links.say(fd, messages.REFUSED, serial, [reason.encode()])
            return
        self.orphan_wait.stop()
        waiting_children.end_all(self.children)
        base = self.children.mark >> 24 << 24
        welcome = messages.Welcome(messages.VERSION, os.getpid(), self.lost_at, base)
        self.links.say(fd, messages.WELCOME, serial, welcome.pack())

    def follow(self, fd: int) -> str | None:
        """Make sure that the previous holder is gone; returns the reason when that fails."""
        now = fence.Holder.behind(self.links[fd].sock)
        before = self.holder
        if before is not None and before.pid != now.pid and not before.fence(fence.END_SECONDS):
            now.close()
            self.lease.release(fd)
            return f"process {before.pid}, the server before, cannot be ended; try again later"
        self.forget_holder()
        self.holder = now
        return None

    def forget_holder(self) -> None:
        if self.holder is not None:
            self.holder.close()
            self.holder = None

    def claim(self, fd: int, serial: int, hello: messages.Hello) -> None:
        """Handle a server that wants the lease of another: that one is killed if it is stuck."""
        holder = self.lease.holder
        assert holder is not None  # noqa: S101 (asked before)
        if self.holder is not None and self.holder.stopped and self.holder.fence(0.0):
            self.claims.append(fence.Claim(fd, serial, hello))
            self.lost(holder)
            return
        self.claims.append(fence.Claim(fd, serial, hello))
        self.links.say(holder, messages.ASKED, 0, [])

    def refuse_claims(self) -> None:
        claims, self.claims = self.claims, []
        for claim in claims:
            reason = self.lease.ask(claim.fd, 0) or "ask again"
            self.links.say(claim.fd, messages.REFUSED, claim.serial, [reason.encode()])

    def settle_claims(self) -> None:
        """Give a free lease to the first server that waits, and refuse the others."""
        claims, self.claims = self.claims, []
        for claim in claims:
            if claim.fd in self.links:
                hello = messages.Hello(claim.hello.version, claim.hello.pid)
                self.grant(claim.fd, claim.serial, hello)

    def fence_silent(self) -> None:
        """Kill a holder that was asked and did not answer in time."""
        if self.claims and time.monotonic() >= self.claims[0].deadline:
            holder = self.lease.holder
            if holder is None:
                self.settle_claims()
            elif self.holder is None or self.holder.fence(0.0):
                self.lost(holder)
            else:
                self.refuse_claims()
