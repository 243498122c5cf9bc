"""One session: its processes, the connection it belongs to, and the secret to resume it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from handrail.process.table import ProcessTable
from handrail.server.notifier import Notifier

if TYPE_CHECKING:
    from handrail.sandbox.loopback import LoopbackNetworks


class Attached(Protocol):
    """The connection a session belongs to."""

    notifier: Notifier

    def evicted(self) -> None:
        """Close: another connection has taken the session over."""


class SessionNote(msgspec.Struct, array_like=True, frozen=True):
    """A session as the next server has to know it."""

    owner: str
    ttl: float
    secret: str | None  # its digest
    detached_at: float | None  # monotonic
    temporary: str | None = None
    older: str | None = None  # the digest of a secret that is still valid
    left: bool = False
    keep: float | None = None
    guarded: bool = False


class Session:
    """A set of processes, and the connection that is notified of them."""

    def __init__(
        self,
        session_id: str,
        owner: str,
        table: ProcessTable,
        ttl: float,
        save: Callable[[Session], None],
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.table = table
        self.ttl = ttl
        self.secret: str | None = None  # the digest of the latest secret
        #: The digest of the previous secret, until the client has confirmed the latest.
        self.older: str | None = None
        self.detached_at: float | None = None
        #: Its client has left it on purpose: it ends with its processes, or after ``keep`` seconds.
        self.left = False
        self.keep: float | None = None
        #: It was handed over: its id is not enough to resume it, for the client before knows it.
        self.guarded = False
        #: Processes that it starts before its client has left are stored from their beginning.
        self.stores_new = False
        #: The ids of processes whose results are stored.
        self.stored: set[str] = set()
        #: Its directory for temporary files.
        self.temporary: str | None = None
        #: Networks that its commands share; made with the first that asks for one.
        self._loopbacks: LoopbackNetworks | None = None
        self._save = save
        self.holder: Attached | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ended = False

    def sink(self) -> Notifier | None:
        """The sink of a child that starts now."""
        return self.holder.notifier if self.holder is not None else None

    @property
    def loopbacks(self) -> LoopbackNetworks:
        """The networks that its commands share."""
        if self._loopbacks is None:
            from handrail.sandbox.loopback import LoopbackNetworks  # few ask for one

            self._loopbacks = LoopbackNetworks()
        return self._loopbacks

    def close_loopbacks(self) -> None:
        """Drop these networks: their commands have ended, and later ones get new networks."""
        if self._loopbacks is not None:
            self._loopbacks.close()
            if not self.ended:
                self._loopbacks = None

    def new_secret(self) -> str:
        """Make a secret for the next resume; the previous one is valid until this has arrived."""
        secret = urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
        self.older = self.older or self.secret
        self.secret = _digest(secret)
        self._save(self)
        return secret

    def arrived(self) -> None:
        """The client confirmed the new resume secret; revoke the previous one."""
        if self.older is not None:
            self.older = None
            self._save(self)

    def knows(self, secret: str | None) -> bool:
        """Whether this is a valid secret of the session."""
        if secret is None:
            return False
        digest = _digest(secret)
        last, before = _same(digest, self.secret or ""), _same(digest, self.older or "")
        return last or before


def _digest(secret: str) -> str:
    """The stored form of a secret: random enough to need no salt."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _same(one: str, other: str) -> bool:
    """Compare in constant time; as bytes, because compare_digest refuses non-ASCII text."""
    return hmac.compare_digest(one.encode(), other.encode())
