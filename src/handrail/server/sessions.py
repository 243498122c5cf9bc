"""Sessions: create, attach, detach, resume, expire.

A session is a set of processes under a random name.  It belongs to at most one connection;
without one it goes on for its time to live and is then ended, every tree of it.  Whoever knows
the id may resume a detached session; whoever also knows its secret may take an attached one
over, and the connection that had it is closed with a reason.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import uuid
from typing import Protocol

from handrail.errors import RpcError
from handrail.process.child import Child
from handrail.process.launcher import Launcher
from handrail.process.table import ProcessTable
from handrail.protocol.envelope import ALREADY_ATTACHED, INVALID_REQUEST
from handrail.server.measures import Measures
from handrail.server.notifier import Notifier

log = logging.getLogger(__name__)

#: What children of an expired session get between TERM and KILL.
EXPIRY_GRACE = 1.0
#: A client may not ask for a longer life without a connection than this.
LONGEST_TTL = 24 * 3600.0


class Attached(Protocol):
    """The connection a session belongs to."""

    notifier: Notifier

    def evicted(self) -> None:
        """Another connection has taken the session over."""


class Session:
    """Processes, and who is to hear of them."""

    def __init__(self, owner: str, table: ProcessTable, ttl: float) -> None:
        self.id = str(uuid.uuid4())
        self.owner = owner
        self.table = table
        self.ttl = ttl
        self.secret: str | None = None
        self.holder: Attached | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ended = False

    def sink(self) -> Notifier | None:
        """Who hears of a child that starts now."""
        return self.holder.notifier if self.holder is not None else None

    def new_secret(self) -> str:
        """A secret for the next resume; the one before is worth nothing any more."""
        self.secret = secrets.token_urlsafe(32)
        return self.secret


class Sessions:
    """All sessions of a server."""

    def __init__(
        self,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
        measures: Measures,
        *,
        ttl: float,
        retention: float,
    ) -> None:
        self._launcher = launcher
        self._loop = loop
        self._measures = measures
        self._ttl = ttl
        self._retention = retention
        self._sessions: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()
        #: Processes that outlived their sessions, by owner.
        self._detached: dict[str, ProcessTable] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, holder: Attached, owner: str) -> Session:
        session = Session(owner, self._table(), self._ttl)
        self._sessions[session.id] = session
        session.holder = holder
        return session

    def _table(self) -> ProcessTable:
        return ProcessTable(
            self._launcher, self._loop, retention=self._retention, observer=self._measures
        )

    # --- processes that outlive their session ----------------------------------------------

    def detached(self, owner: str) -> list[Child]:
        """Processes of ended sessions of this owner."""
        return list(self._detached.get(owner, ()))

    def reattach(self, session: Session, key: str) -> Child | None:
        """Have one of them belong to this session from now on."""
        table = self._detached.get(session.owner)
        child = None if table is None else table.get(key)
        if table is None or not isinstance(child, Child):
            return None
        table.give_up(child)
        if not len(table):
            del self._detached[session.owner]
        session.table.adopt(child)
        child.sink = session.sink()
        return child

    def _detach_processes(self, session: Session) -> None:
        for child in session.table:
            if child.spec.detach and not child.closed:
                session.table.give_up(child)
                child.sink = None
                child.resume()
                self._detached.setdefault(session.owner, self._table()).adopt(child)

    # --- attach and detach -----------------------------------------------------------------

    def resume(self, session_id: str, holder: Attached, owner: str, secret: str | None) -> Session:
        """Attach to a session that exists; raises the wire's errors."""
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            # Not telling "not yours" from "not there".
            raise RpcError(INVALID_REQUEST, f"unknown session id {session_id}")
        wrong = secret is not None and not _same(secret, session.secret or "")
        if wrong and session.holder is None:
            log.warning("a wrong secret was presented for session %s", session.id)
            raise RpcError(INVALID_REQUEST, f"unknown session id {session_id}")
        if session.holder is not None:
            known = session.secret
            if secret is None or known is None or not _same(secret, known):
                raise RpcError(
                    ALREADY_ATTACHED,
                    f"session {session_id} is already attached to another connection",
                )
            evicted = session.holder
            self._let_go(session)
            evicted.evicted()
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        session.holder = holder
        for child in session.table:
            child.sink = holder.notifier
        return session

    def set_ttl(self, session: Session, ttl: float) -> None:
        """How long it lives without a connection, within our own bounds."""
        session.ttl = min(max(ttl, 0.0), max(LONGEST_TTL, self._ttl))

    def detach(self, session: Session, holder: Attached) -> None:
        """The connection is gone; the session waits for the next."""
        if session.holder is not holder or session.ended:
            return
        self._let_go(session)
        session.timer = self._loop.call_later(session.ttl, self._expire, session)

    def _let_go(self, session: Session) -> None:
        session.holder = None
        for child in session.table:
            child.sink = None
            child.resume()

    def _expire(self, session: Session) -> None:
        log.info("session %s expired after %.1f s without a connection", session.id, session.ttl)
        self.close(session)

    def close(self, session: Session) -> asyncio.Task[None]:
        """Begin to end a session, whoever may stop waiting for it."""
        task = self._loop.create_task(self.end(session, EXPIRY_GRACE))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def end(
        self, session: Session, grace: float = 0.0, *, keep_detached: bool = True
    ) -> None:
        """End a session and every tree of it, but for those that were started to outlive it."""
        if session.ended:
            return
        session.ended = True
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        self._sessions.pop(session.id, None)
        session.holder = None
        if keep_detached:
            self._detach_processes(session)
        await session.table.end_all(grace)

    async def end_all(self, grace: float = 0.0) -> None:
        """The server stops."""
        ending = [self.end(s, grace, keep_detached=False) for s in self._sessions.values()]
        detached, self._detached = self._detached, {}
        ending += [table.end_all(grace) for table in detached.values()]
        await asyncio.gather(*ending)
        if self._ending:
            await asyncio.wait(self._ending)

    def children(self) -> list[Child]:
        """Every process of every session."""
        tables = [*(s.table for s in self._sessions.values()), *self._detached.values()]
        return [child for table in tables for child in table]


def _same(one: str, other: str) -> bool:
    """Compared in constant time; as bytes, for text that is not ASCII is refused there."""
    return hmac.compare_digest(one.encode(), other.encode())
