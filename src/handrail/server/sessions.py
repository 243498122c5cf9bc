"""Sessions: create, attach, detach, resume, expire.

A session is a set of processes under a random id.  It belongs to at most one connection;
without one it lives for its time to live and is then ended, with every process tree of it.  A
client that knows the id may resume a detached session; one that also knows its secret may take
over an attached one, and the connection that had it is closed with a reason.  The keeper has a
note of each session, so that the next server resumes it with its remaining time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from handrail.errors import RpcError
from handrail.process.child import Child
from handrail.process.keeper_client.launcher import Launcher
from handrail.process.recovery import start_note
from handrail.process.table import ProcessTable
from handrail.protocol.envelope import ALREADY_ATTACHED, INVALID_REQUEST
from handrail.server.metrics import ServerMetrics
from handrail.server.notifier import Notifier
from handrail.server.session_temp import SessionTempDirs

log = logging.getLogger(__name__)

#: Seconds between TERM and KILL for children of an expired session.
EXPIRY_GRACE = 1.0
#: The longest time to live that a client may ask for.
LONGEST_TTL = 24 * 3600.0


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


_KEY = b"session/"


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
        #: Its directory for temporary files.
        self.temporary: str | None = None
        self._save = save
        self.holder: Attached | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ended = False

    def sink(self) -> Notifier | None:
        """The sink of a child that starts now."""
        return self.holder.notifier if self.holder is not None else None

    def new_secret(self) -> str:
        """Make a secret for the next resume; the previous one is valid until this has arrived."""
        secret = secrets.token_urlsafe(32)
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


class Sessions:
    """All sessions of a server."""

    def __init__(
        self,
        launcher: Launcher,
        loop: asyncio.AbstractEventLoop,
        measures: ServerMetrics,
        *,
        ttl: float,
        retention: float,
    ) -> None:
        self._launcher = launcher
        self._loop = loop
        self._measures = measures
        self._ttl = ttl
        self._retention = retention
        self.temporaries = SessionTempDirs()
        self._sessions: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()
        #: Processes that outlived their sessions, by owner.
        self._detached: dict[str, ProcessTable] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, holder: Attached, owner: str) -> Session:
        session = self._make(str(uuid.uuid4()), owner, self._ttl)
        session.holder = holder
        self._save(session)
        return session

    def _make(self, session_id: str, owner: str, ttl: float) -> Session:
        session = Session(session_id, owner, self._table(session_id), ttl, self._save)
        self._sessions[session_id] = session
        return session

    def _table(self, session_id: str | None = None) -> ProcessTable:
        return ProcessTable(
            self._launcher,
            self._loop,
            retention=self._retention,
            observer=self._measures,
            owner=session_id,
        )

    # --- succession of servers and keepers ---------------------------------------------------

    def _save(self, session: Session) -> None:
        note = SessionNote(
            session.owner,
            session.ttl,
            session.secret,
            session.detached_at,
            session.temporary,
            session.older,
        )
        self._launcher.note(_KEY + session.id.encode(), msgspec.json.encode(note))

    def save_all(self) -> None:
        """Give every note to a new keeper."""
        for session in self._sessions.values():
            self._save(session)

    def everything(self) -> Iterator[tuple[str, bool, Child]]:
        """Every process with its session, or with its owner when it is detached from any; also
        forgotten ones that have left descendants."""
        for session in self._sessions.values():
            for child in (*session.table, *session.table.left_behind()):
                yield session.id, False, child
        for owner, table in self._detached.items():
            for child in (*table, *table.left_behind()):
                yield owner, True, child

    @property
    def starting(self) -> bool:
        """Whether any process is being started."""
        return any(session.table.starting for session in self._sessions.values())

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def revive(self, kept: dict[bytes, bytes], lost_at: float) -> None:
        """Revive the sessions of a server that was lost at this time; none is attached."""
        for key, value in kept.items():
            if not key.startswith(_KEY):
                continue
            try:
                note = msgspec.json.decode(value, type=SessionNote)
            except msgspec.DecodeError:
                log.error("a session note is not of this version; its processes are ended")
                continue
            session = self._make(key[len(_KEY) :].decode(), note.owner, note.ttl)
            session.secret, session.older = note.secret, note.older
            session.temporary = note.temporary
            session.detached_at = lost_at if note.detached_at is None else note.detached_at
            self._save(session)
            left = session.detached_at + session.ttl - time.monotonic()
            session.timer = self._loop.call_later(max(0.0, left), self._expire, session)

    # --- processes that outlive their session ----------------------------------------------

    def detached(self, owner: str) -> list[Child]:
        """Processes of ended sessions of this owner."""
        return list(self._detached.get(owner, ()))

    def reattach(self, session: Session, key: str) -> Child | None:
        """Move one of them to this session."""
        table = self._detached.get(session.owner)
        child = None if table is None else table.get(key)
        if table is None or not isinstance(child, Child):
            return None
        table.give_up(child)
        if not len(table):
            del self._detached[session.owner]
        session.table.adopt(child)
        self._launcher.renote(child.number, start_note.move(session.id, child.key))
        child.sink = session.sink()
        return child

    def revive_detached(self, owner: str, child: Child, closed_ago: float | None) -> None:
        """Add a detached process that was found after a crash."""
        self._detached.setdefault(owner, self._table()).revive(child, closed_ago)

    def _detach_processes(self, session: Session) -> bool:
        """Keep those that were started to outlive the session; whether there were any."""
        outlived = False
        for child in session.table:
            if child.spec.detach and not child.closed:
                outlived = True
                session.table.give_up(child)
                child.sink = None
                child.output.resume()
                self._detached.setdefault(session.owner, self._table()).adopt(child)
                moved = start_note.move(session.owner, child.key, detached=True)
                self._launcher.renote(child.number, moved)
        return outlived

    # --- attach and detach -----------------------------------------------------------------

    def resume(self, session_id: str, holder: Attached, owner: str, secret: str | None) -> Session:
        """Attach to a session that exists; raises the wire's errors."""
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            # One error for "not yours" and "not there".
            raise RpcError(INVALID_REQUEST, f"unknown session id {session_id}")
        if secret is not None and not session.knows(secret) and session.holder is None:
            log.warning("a wrong secret was presented for session %s", session.id)
            raise RpcError(INVALID_REQUEST, f"unknown session id {session_id}")
        if session.holder is not None:
            if not session.knows(secret):
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
        session.detached_at = None
        self._save(session)
        for child in session.table:
            child.sink = holder.notifier
        return session

    def temporary(self, session: Session) -> str:
        """Its directory for temporary files, made on first use; raises OSError."""
        if session.temporary is None:
            session.temporary = os.fsdecode(self.temporaries.make())
            self._save(session)
        return session.temporary

    def set_ttl(self, session: Session, ttl: float) -> None:
        """Set its time to live without a connection, within the server's limits."""
        session.ttl = min(max(ttl, 0.0), max(LONGEST_TTL, self._ttl))
        self._save(session)

    def detach(self, session: Session, holder: Attached) -> None:
        """The connection is gone; the session waits for the next."""
        if session.holder is not holder or session.ended:
            return
        self._let_go(session)
        session.detached_at = time.monotonic()
        self._save(session)
        session.timer = self._loop.call_later(session.ttl, self._expire, session)

    def _let_go(self, session: Session) -> None:
        session.holder = None
        for child in session.table:
            child.sink = None
            child.output.resume()

    def _expire(self, session: Session) -> None:
        log.info("session %s expired after %.1f s without a connection", session.id, session.ttl)
        self.close(session)

    def close(self, session: Session) -> asyncio.Task[None]:
        """Start to end a session; the task runs on if the caller stops waiting."""
        task = self._loop.create_task(self.end(session, EXPIRY_GRACE))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def end(
        self, session: Session, grace: float = 0.0, *, keep_detached: bool = True
    ) -> None:
        """End a session with its process trees, except for those started to outlive it."""
        if session.ended:
            return
        session.ended = True
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        self._sessions.pop(session.id, None)
        # First: otherwise the next server ends what we have not ended.
        self._launcher.note(_KEY + session.id.encode(), None)
        session.holder = None
        outlived = self._detach_processes(session) if keep_detached else False
        await session.table.end_all(grace)
        if session.temporary is not None and not outlived:
            await asyncio.to_thread(self.temporaries.remove, os.fsencode(session.temporary))

    async def end_all(self, grace: float = 0.0) -> None:
        """End all sessions; the server stops."""
        ending = [self.end(s, grace, keep_detached=False) for s in self._sessions.values()]
        detached, self._detached = self._detached, {}
        ending += [table.end_all(grace) for table in detached.values()]
        await asyncio.gather(*ending)
        if self._ending:
            await asyncio.wait(self._ending)

    def children(self) -> list[Child]:
        """Every process of every session."""
        return [child for table in self.tables() for child in table]

    def tables(self) -> list[ProcessTable]:
        """The tables of all sessions, and of processes that outlived theirs."""
        return [*(s.table for s in self._sessions.values()), *self._detached.values()]


def _digest(secret: str) -> str:
    """The stored form of a secret: random enough to need no salt."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _same(one: str, other: str) -> bool:
    """Compare in constant time; as bytes, because compare_digest refuses non-ASCII text."""
    return hmac.compare_digest(one.encode(), other.encode())
