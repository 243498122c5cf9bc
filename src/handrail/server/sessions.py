"""Sessions: create, attach, detach, resume, expire.

A session is a set of processes under a random id.  It belongs to at most one connection;
without one it lives for its time to live and is then ended, with every process tree of it.  A
client that knows the id may resume a detached session; one that also knows its secret may take
over an attached one, and the connection that had it is closed with a reason.  The keeper has a
note of each session, so that the next server resumes it with its remaining time.  Its time to live
is ``detach_ttl`` of ``server_settings.py``.  The client that resumes it is
``executor/client/session.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator

import msgspec

from handrail.errors import RpcError
from handrail.process.child import Child
from handrail.process.keeper_client.spawn_children import Launcher
from handrail.process.recovery import start_note
from handrail.process.table import ProcessTable
from handrail.protocol.envelope import ALREADY_ATTACHED, INVALID_REQUEST
from handrail.server.metrics import ServerMetrics
from handrail.server.results import Results, owned
from handrail.server.session import Attached, Session, SessionNote
from handrail.server.session_temp import SessionTempDirs
from handrail.server_settings import ResultBounds

log = logging.getLogger(__name__)

#: Seconds between TERM and KILL for children of an expired session.
EXPIRY_GRACE = 1.0
#: Processes of a workspace's session that have closed, and bytes of their output, that are kept.
KEPT_PROCESSES = 64
KEPT_BYTES = 16 * 1024 * 1024
#: How long the end of a session waits until the results of its processes are stored.
STORE_SECONDS = 3.0
#: The longest time to live that a client may ask for.
LONGEST_TTL = 24 * 3600.0


_KEY = b"session/"


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
        results: Results | None = None,
    ) -> None:
        self._launcher = launcher
        self.results = results or Results(loop, ResultBounds(each=0))
        self._loop = loop
        self._measures = measures
        self._ttl = ttl
        self._retention = retention
        self.temporaries = SessionTempDirs()
        self._sessions: dict[str, Session] = {}
        #: The ids of sessions in workspaces: they live as long as these, with or without a client.
        self.lasting: set[str] = set()
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
        if session_id in self.lasting:
            session.table.keep_closed(KEPT_PROCESSES, KEPT_BYTES)
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
            session.left,
            session.keep,
            session.guarded,
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
            session.left, session.keep = note.left, note.keep
            session.guarded = note.guarded
            session.detached_at = lost_at if note.detached_at is None else note.detached_at
            self._save(session)
            self._await_return(session)

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
        if child.spec.network is not None:
            child.spec.network.attached()
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
                if child.spec.network is not None:
                    child.spec.network.detached()
                self._detached.setdefault(session.owner, self._table()).adopt(child)
                self.results.begin(child, owned(session.owner), session.owner)
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
        guarded = session.guarded or (secret is not None and session.holder is None)
        if guarded and not session.knows(secret):
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
        session.stores_new = False
        self._save(session)
        for child in session.table:
            child.sink = holder.notifier
        return session

    def ask_again(self, session: Session) -> None:
        """Ask the client of a resumed session what its processes wait for."""
        for child in session.table:
            if child.spec.network is not None:
                child.spec.network.attached()

    def temporary(self, session: Session) -> str:
        """The session's directory for temporary files, made on first use; raises OSError."""
        if session.temporary is None:
            session.temporary = os.fsdecode(self.temporaries.make())
            self._save(session)
        return session.temporary

    def set_ttl(self, session: Session, ttl: float) -> None:
        """Set its time to live without a connection, within the server's limits."""
        session.ttl = min(max(ttl, 0.0), max(LONGEST_TTL, self._ttl))
        self._save(session)

    def detach(self, session: Session, holder: Attached) -> None:
        """Detach a session from its closed connection; it waits for the next one."""
        if session.holder is not holder or session.ended:
            return
        self._let_go(session)
        session.detached_at = time.monotonic()
        self._save(session)
        if session.left:
            self.store(session, (child.key for child in session.table if child.running))
        self._await_return(session)

    def leave(self, session: Session, keep: float | None, wanted: list[str] | None) -> None:
        """Prepare for the client's detach: results of the processes ``wanted`` are stored."""
        session.left, session.keep, session.stores_new = True, keep, wanted is None
        self._save(session)
        self.store(session, [child.key for child in session.table] if wanted is None else wanted)

    def store(self, session: Session, keys: Iterable[str]) -> None:
        """Store the results of these processes from now on."""
        for key in keys:
            child = session.table.get(key)
            if isinstance(child, Child):
                session.stored.add(key)
                self.results.begin(child, session.id, session.owner)

    def _await_return(self, session: Session) -> None:
        """Start the time to live of a session without a connection."""
        if session.id in self.lasting:
            return
        ttl = session.keep if session.left else session.ttl
        if ttl is None:
            session.timer = self._loop.call_later(self._retention, self._look, session)
            return
        gone = time.monotonic() - (session.detached_at or 0.0)
        session.timer = self._loop.call_later(max(0.0, ttl - gone), self._expire, session)

    def _look(self, session: Session) -> None:
        """End a session that was left on purpose, if all its processes have ended by now."""
        session.timer = None
        task = self._loop.create_task(self._end_if_idle(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_if_idle(self, session: Session) -> None:
        idle = await session.table.is_idle()
        if session.holder is None and not session.ended and session.timer is None:
            if idle:
                await self.end(session, EXPIRY_GRACE)
            else:
                self._await_return(session)

    # --- sessions in workspaces --------------------------------------------------------------

    def last(self, session: Session) -> None:
        """Let a session live as long as its workspace, with the processes that have closed."""
        self.lasting.add(session.id)
        session.table.keep_closed(KEPT_PROCESSES, KEPT_BYTES)
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None

    def leave_at_once(self, session: Session, *, shared: bool) -> bool:
        """Version of ``leave_workspace`` for a session with nothing to end; False: it has."""
        if not shared or session.holder is None or session.temporary is not None:
            return False
        if not session.table.end_at_once():
            return False
        session.close_loopbacks()
        self.last_no_more(session)
        return True

    async def leave_workspace(self, session: Session, *, shared: bool) -> None:
        """End every process of a session; with ``shared`` an attached session itself goes on."""
        if not shared or session.holder is None:
            await self.end(session, EXPIRY_GRACE, keep_detached=False)
            return
        await session.table.end_all(EXPIRY_GRACE)
        session.close_loopbacks()
        temporary, session.temporary = session.temporary, None
        if temporary is not None:
            self._save(session)
            await asyncio.to_thread(self.temporaries.remove, os.fsencode(temporary))
        self.last_no_more(session)

    def last_no_more(self, session: Session) -> None:
        """Give a session its time to live back."""
        self.lasting.discard(session.id)
        session.table.keep_no_longer()
        if not session.ended and session.holder is None and session.timer is None:
            self._await_return(session)

    def hand_over(self, session: Session, owner: str) -> str:
        """Give a session to another client, evict the one that has it; the secret to resume it."""
        evicted = session.holder
        if evicted is not None:
            self._let_go(session)
            session.detached_at = time.monotonic()
            evicted.evicted()
        session.owner = owner
        session.secret = session.older = None
        session.guarded = True
        return session.new_secret()

    def _let_go(self, session: Session) -> None:
        session.holder = None
        for child in session.table:
            child.sink = None
            child.output.resume()
            child.wake()  # what is stored of it need not wait for a reader any more
            if child.spec.network is not None:
                child.spec.network.detached()

    def _expire(self, session: Session) -> None:
        log.info("session %s expired: it had no connection for too long", session.id)
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
        self.lasting.discard(session.id)
        # First: otherwise the next server ends what we have not ended.
        self._launcher.note(_KEY + session.id.encode(), None)
        session.holder = None
        outlived = self._detach_processes(session) if keep_detached else False
        await self._end_table(session.table, grace)
        session.close_loopbacks()
        if session.temporary is not None and not outlived:
            await asyncio.to_thread(self.temporaries.remove, os.fsencode(session.temporary))

    async def _end_table(self, table: ProcessTable, grace: float) -> None:
        """End processes; the ends of those whose results are stored are stored too."""
        storing = [child for child in table if self.results.has(child)]
        for child in storing:
            child.sink = None
            child.output.resume()
            child.wake()
        ending = (child.end(grace) for child in storing if child.running)
        await asyncio.gather(*ending, return_exceptions=True)
        await self.results.settled(storing, STORE_SECONDS)
        await table.end_all(grace)

    async def forget(self, session: Session) -> None:
        """Remove the results of a session: its client has them, and ends it."""
        if session.stored:
            await self.results.drop(session.id, session.stored)

    async def end_all(self, grace: float = 0.0) -> None:
        """End all sessions; the server stops."""
        ending = [self.end(s, grace, keep_detached=False) for s in self._sessions.values()]
        detached, self._detached = self._detached, {}
        ending += [self._end_table(table, grace) for table in detached.values()]
        await asyncio.gather(*ending)
        if self._ending:
            await asyncio.wait(self._ending)

    def children(self) -> list[Child]:
        """Every process of every session."""
        return [child for table in self.tables() for child in table]

    def tables(self) -> list[ProcessTable]:
        """The tables of all sessions, and of processes that outlived theirs."""
        return [*(s.table for s in self._sessions.values()), *self._detached.values()]
