"""The workspaces of a server: create, enter, adopt, release, list, and their end by a lease.

A workspace is a directory with a record, an owner, a part of the server's share and at most one
session, whose processes it holds.  It lives until it is released, or until its owner has had no
connection for its lease.  Records are on disk and sessions with the keeper, so the next server
goes on with both.  When the keeper has died as well, the processes are gone: that is another
*incarnation*, and it begins without workspaces.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from handrail.errors import RpcError
from handrail.process.env_policy import BuiltEnvironments
from handrail.sandbox import temp_dirs
from handrail.server import environment
from handrail.server.workspaces import prepare, refusals, stamp
from handrail.server.workspaces.directories import Directories
from handrail.server.workspaces.file_work import FileWork, quietly
from handrail.server.workspaces.leases import Leases, Owner
from handrail.server.workspaces.metrics import WorkspaceMetrics
from handrail.server.workspaces.pools import Pools
from handrail.server.workspaces.record import Record
from handrail.server.workspaces.share import Amounts, Share
from handrail.server.workspaces.spare_directories import SpareDirectories
from handrail.server.workspaces.spare_networks import SpareNetworks
from handrail.server.workspaces.stored_owners import StoredOwners
from handrail.server.workspaces.stored_records import StoredRecords
from handrail.server.workspaces.templates import Templates
from handrail.server.workspaces.tree_copy import Stopped

if TYPE_CHECKING:
    from handrail.process.spec import Group
    from handrail.server.app import Server
    from handrail.server.connection import Connection
    from handrail.server.session import Session
    from handrail.server_settings import WorkspaceSettings

log = logging.getLogger(__name__)

#: Seconds between two looks at the leases.
_LEASE_SECONDS = 1.0
#: Seconds between two looks at the disk.
_DISK_SECONDS = 30.0
#: How long a server that hands over waits for work on workspaces.
_SETTLE_SECONDS = 2.0


class Workspaces:
    """All workspaces of one server."""

    def __init__(self, server: Server, settings: WorkspaceSettings) -> None:
        """Open the directory and read its records; raises UsageError."""
        self._server = server
        self._settings = settings
        self.min_free = settings.min_free
        #: Those of processes in workspaces.
        self.environments = BuiltEnvironments(environment.of_fleet(server.own_environment))
        self.directories = Directories(settings.directory)
        self.share = Share(Amounts(settings.cpu_millis, settings.memory_bytes, settings.workspaces))
        self._work = FileWork()
        self.templates = Templates(self.directories, self._work, settings.min_free)
        self.pools = Pools(
            self.directories, self._work, self.templates, settings.min_free, self._prepare
        )
        self.templates.needed = self._needed_templates
        self.measures = WorkspaceMetrics(server.measures.registry)
        self.leases = Leases()
        self.incarnation = ""
        self._stored_owners = StoredOwners(
            self.directories, self._work, self.leases, self._owners, self._spawn
        )
        self._stored = StoredRecords(self.directories)
        self._records = self._stored.found
        self._spares = SpareDirectories(self.directories, self._work, self._spawn)
        self.networks = SpareNetworks(self._work, self._spawn)
        #: The workspace that each session is in.
        self._entered: dict[str, Record] = {}
        self._making: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        for record in self._records.values():
            if record.session is not None:
                self._entered[record.session] = record
                server.sessions.lasting.add(record.session)

    # --- one server after another -------------------------------------------------------------

    def begin(self, *, found: bool) -> None:
        """Go on with what was read; ``found``: a keeper of the previous server lives."""
        known = (self.directories.read("incarnation") or b"").decode(errors="replace")
        if not found or not known or self._unknown_to_keeper():
            if self._records:
                log.warning("%d workspaces were lost with their keeper", len(self._records))
            self._records.clear()
            self._stored.write_all()
            self._entered.clear()
            self._server.sessions.lasting.clear()
            known = os.urandom(16).hex()
            self.directories.write(known.encode(), "incarnation")
        self.incarnation = known
        for record in self._records.values():
            self.share.take(record.amounts)
        self._stored_owners.restore()
        ready = self.pools.load()
        names = {record.name for record in self._records.values()} | ready
        for path in self.directories.tidy(names):
            self._spawn(self._work.long(temp_dirs.clear, os.fsencode(path)))
        self.pools.begin()
        self._look_at_leases()
        self._spawn(self._watch_disk())
        if self._settings.supervised is not None:
            stamp.begin(path := self.directories.of("stamp"))
            self._spawn(self._supervised(path, self._settings.supervised))

    def _unknown_to_keeper(self) -> bool:
        """Whether no recorded session is there: a server that had lost its keeper has started this
        one, and was killed before it gave anything to it."""
        return bool(self._entered) and not any(map(self._server.sessions.get, self._entered))

    async def _watch_disk(self) -> None:
        """Remove unused templates when others fill the disk: drivers ask no server that is full."""
        while not self._closed:
            await self._work.long(self.templates.make_room)
            await asyncio.sleep(_DISK_SECONDS)

    async def _supervised(self, path: str, seconds: float) -> None:
        why = await stamp.until_old(path, seconds)
        log.error("no supervisor: %s; everything is ended", why)
        self._server.end_everything()

    async def settled(self) -> None:
        """Wait a little for workspaces that are being made or ended: the next server reads them."""
        under_way = [*self._making.values(), *self._ending.values()]
        if under_way:
            await asyncio.wait(under_way, timeout=_SETTLE_SECONDS)

    def close(self) -> None:
        """Stop here, and leave everything to the next server."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.pools.close()
        self._spares.close()
        self.networks.close()
        self._stored.close()
        self._stored_owners.close()
        for task in list(self._tasks):
            task.cancel()
        self._work.close()
        self.directories.close()

    async def end_all(self) -> None:
        """End every workspace and pool with everything in them; the server stops."""
        ending = [self._end(record, "stopped") for record in list(self._records.values())]
        await asyncio.gather(*ending, self.pools.drop_all(), return_exceptions=True)
        await self._spares.end()

    # --- create ----------------------------------------------------------------------------------

    def create(
        self, conn: Connection, record: Record, *, enter: bool
    ) -> Record | Coroutine[Any, Any, Record]:
        """Make a workspace, or find the one of this id and owner; raises RpcError.

        Returns it, or what brings it if it is not ready at once.
        """
        try:
            session = self._free_session(conn, record.id) if enter else None
            known = self._known_or_begun(record, session)
        except RpcError as error:
            self.measures.refused(error)
            raise
        return record if known is record and record.name else self._joined(known, session)

    def _known_or_begun(self, record: Record, session: Session | None) -> Record:
        known = self._records.get(record.id)
        if known is not None:
            if known.owner != record.owner or known.tenant != record.tenant:
                raise refusals.not_yours(record.id)
            return known
        self._admit(record)
        if session is not None:
            self._bind(record, session)
        self._records[record.id] = record
        if not self._make_at_once(record):
            task = self._server.loop.create_task(self._make(record))
            self._making[record.id] = task
            task.add_done_callback(lambda done: self._made(record, done))
        return record

    async def _joined(self, record: Record, session: Session | None) -> Record:
        try:
            # Shielded: a client that is lost meanwhile asks again, and finds it.
            await self._complete(record)
            if session is not None and record.session != session.id:
                self._enter(record, session)
        except RpcError as error:
            self.measures.refused(error)
            raise
        return record

    def _admit(self, record: Record) -> None:
        """Take its part of the share; raises RpcError.  No await: this is what makes it atomic."""
        wanted = record.amounts
        if record.template is not None:
            self.templates.check(record.template)
        if self._closed or self._server.draining:
            raise refusals.stops()
        missing = self.share.missing(wanted)
        if missing:
            raise refusals.no_room(record.id, wanted, self.share, missing)
        self.share.take(wanted)

    def _make_at_once(self, record: Record) -> bool:
        """Give a workspace without a template one of the spare directories, if there is any."""
        if record.template is not None or self.directories.free() < self.min_free:
            return False
        name = self._spares.take()
        if name is None:
            return False
        began = time.monotonic()
        record.name = name
        try:
            self._stored.write(record)
        except OSError:
            record.name = ""
            self._spares.put_back(name)
            return False  # the reason is told by the attempt that follows
        self.measures.made("empty", time.monotonic() - began)
        return True

    async def _make(self, record: Record) -> None:
        began, template = time.monotonic(), record.template
        taken = None if template is None else self.pools.take(template, record.tenant)
        cold = template is not None and taken is None
        run = self._work.long if cold else self._work.quick
        try:
            record.name, record.warm = await run(
                self.pools.make_files, template, taken, self.min_free
            )
            try:
                self._stored.write(record)
            except OSError:
                await self._work.long(self.directories.discard, record.name)
                raise
            kind = "warm" if record.warm else "empty" if template is None else "copied"
            self.measures.made(kind, time.monotonic() - began)
        except OSError as error:
            raise refusals.files_failed(error) from None
        except Stopped:
            raise refusals.stops() from None

    def _made(self, record: Record, task: asyncio.Task[None]) -> None:
        self._making.pop(record.id, None)
        if task.cancelled() or task.exception() is not None:
            session = self.session_of(record)
            if session is not None:
                self._server.sessions.last_no_more(session)
            self._forget(record)

    async def _complete(self, record: Record) -> None:
        """Wait until it is made; raises RpcError when that failed, or when it is being ended."""
        task = self._making.get(record.id)
        if task is not None:
            await asyncio.shield(task)
        if record.id in self._ending or self._records.get(record.id) is not record:
            raise refusals.gone(record.id)

    # --- sessions --------------------------------------------------------------------------------

    def _free_session(self, conn: Connection, workspace_id: str) -> Session:
        """The connection's session, which may enter this workspace; raises RpcError."""
        session = conn.session
        assert session is not None  # noqa: S101 (checked with the handshake)
        if session.ended:
            raise refusals.session_ended()
        other = self._entered.get(session.id)
        if other is not None and other.id != workspace_id:
            raise refusals.elsewhere(other.id)
        return session

    async def enter(self, conn: Connection, workspace_id: str, owner: str) -> Record:
        """Let the connection's session have the workspace for its processes; raises RpcError."""
        record = self._of(conn, workspace_id, owner)
        session = self._free_session(conn, workspace_id)
        await self._complete(record)
        self._enter(record, session)
        return record

    def _enter(self, record: Record, session: Session) -> None:
        other = self.session_of(record)
        if other is not None and other is not session:
            raise refusals.occupied(record.id, other.id)
        self._bind(record, session)
        self._save(record)

    def _bind(self, record: Record, session: Session) -> None:
        if record.session is not None:
            self._entered.pop(record.session, None)
        record.session = session.id
        self._entered[session.id] = record
        self._server.sessions.last(session)

    def session_of(self, record: Record) -> Session | None:
        """The session in a workspace, if it lives."""
        return None if record.session is None else self._server.sessions.get(record.session)

    def has(self, session: Session) -> bool:
        """Whether a session is in a workspace."""
        return session.id in self._entered

    def variables(self, session: Session) -> dict[str, str]:
        """Variables that the processes of a session in a workspace have, unless given others."""
        record = self._entered.get(session.id)
        if record is None or not record.name:
            return {}
        return {"TMPDIR": self.directories.temporary(record.name)}

    def enforces(self, record: Record) -> bool:
        """Whether control groups hold its processes to what it asked for."""
        return self._server.launcher.abilities.groups and record.group is not None

    def group(self, session: Session) -> Group | None:
        """The control group of the processes of a session, if it is in a workspace that has one."""
        record = self._entered.get(session.id)
        return record.group if record is not None and self.enforces(record) else None

    async def adopt(self, conn: Connection, workspace_id: str, owner: str) -> tuple[Record, str]:
        """Give a workspace to an owner, and the secret by which its session is resumed, if any."""
        record = self._seen(conn, workspace_id)
        await self._complete(record)
        record.owner, record.since = owner, time.monotonic()
        session = self.session_of(record)
        secret = ""
        if session is not None:
            secret = self._server.sessions.hand_over(session, conn.owner)
        self._save(record)
        return record, secret

    # --- the end -------------------------------------------------------------------------------

    def release_at_once(self, conn: Connection, workspace_id: str, owner: str) -> bool:
        """End a workspace in which nothing has to be ended; False: ``release`` is needed."""
        if workspace_id not in self._records:
            return True
        record = self._of(conn, workspace_id, owner)
        session = self.session_of(record)
        if session is None or record.id in self._making or record.id in self._ending:
            return False
        if not self._server.sessions.leave_at_once(session, shared=record.shared):
            return False
        self.measures.ended("released")
        self._remove(record)
        return True

    async def release(self, conn: Connection, workspace_id: str, owner: str) -> None:
        """End a workspace with everything in it; one that is gone is released already."""
        if workspace_id not in self._records:
            return
        record = self._of(conn, workspace_id, owner)
        await asyncio.shield(self._end(record, "released"))

    def _end(self, record: Record, reason: str) -> asyncio.Task[None]:
        task = self._ending.get(record.id)
        if task is None:
            self.measures.ended(reason)
            task = self._server.loop.create_task(self._finish(record))
            self._ending[record.id] = task
            task.add_done_callback(lambda done: self._finished(record, done))
        return task

    async def _finish(self, record: Record) -> None:
        making = self._making.get(record.id)
        if making is not None:
            await asyncio.wait((making,))
            if making.exception() is not None:
                return
        session = self.session_of(record)
        if session is not None:
            await self._server.sessions.leave_workspace(session, shared=record.shared)
        self._remove(record)

    def _remove(self, record: Record) -> None:
        # The directory first: a record without one is removed by the next server.
        self._spares.remove(record.name)
        self._forget(record)
        self._stored.remove(record)

    def _finished(self, record: Record, task: asyncio.Task[None]) -> None:
        self._ending.pop(record.id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("workspace %s is not ended: %s", record.id, error)

    def _forget(self, record: Record) -> None:
        if self._records.get(record.id) is record:
            del self._records[record.id]
            self.share.give_back(record.amounts)
        if record.session is not None and self._entered.get(record.session) is record:
            del self._entered[record.session]

    # --- owners --------------------------------------------------------------------------------

    def hold(self, conn: Connection, owner: str) -> None:
        """Let a connection hold all workspaces of an owner."""
        self.leases.hold(Owner(conn.tenant, owner), conn)
        conn.on_end = self._let_go
        self._stored_owners.save()

    def _let_go(self, conn: Connection) -> None:
        if self.leases.let_go(conn, time.monotonic()) and not self._closed:
            self._stored_owners.save()

    def _look_at_leases(self) -> None:
        now = time.monotonic()
        for record in list(self._records.values()):
            over = self.leases.over(record.held_by, record.since, record.lease)
            if over is not None and over <= now and record.id not in self._ending:
                told = record.id, record.owner, record.lease
                log.warning("workspace %s ends: its owner %r had no connection for %g s", *told)
                self._end(record, "expired")
        self.count()
        self._spares.look()
        self.networks.look()
        self._timer = self._server.loop.call_later(_LEASE_SECONDS, self._look_at_leases)

    def _owners(self) -> set[Owner]:
        return {record.held_by for record in self._records.values()}

    # --- looking -----------------------------------------------------------------------------

    def _seen(self, conn: Connection, workspace_id: str) -> Record:
        """The workspace of an id, if the client may know of it; raises RpcError."""
        record = self._records.get(workspace_id)
        if record is None or conn.tenant not in (None, record.tenant):
            raise refusals.gone(workspace_id)
        return record

    def _of(self, conn: Connection, workspace_id: str, owner: str) -> Record:
        record = self._seen(conn, workspace_id)
        if record.owner != owner:
            raise refusals.not_yours(workspace_id)
        return record

    def listed(self, conn: Connection, owner: str | None, labels: dict[str, str]) -> list[Record]:
        """The workspaces that are complete, match, and may be known to the client."""
        return [
            record
            for record in self._records.values()
            if record.id not in self._making
            and conn.tenant in (None, record.tenant)
            and record.matches(owner, labels)
        ]

    def count(self) -> None:
        """Bring what is measured up to date."""
        found = ((self._state(record), record.tenant) for record in self._records.values())
        ready = sum(self.pools.counts().values())
        self.measures.count(found, ready, len(self.templates))

    def _state(self, record: Record) -> str:
        if record.id in self._ending:
            return "ending"
        if record.id in self._making:
            return "making"
        return "held" if self.leases.is_held(record.held_by) else "unheld"

    def _needed_templates(self) -> set[str]:
        """Those of workspaces and pools; in any thread."""
        used = {record.template for record in list(self._records.values())}
        return {digest for digest in used if digest is not None} | self.pools.templates()

    async def free_disk(self) -> int:
        return await self._work.quick(self.directories.free)

    def _save(self, record: Record) -> None:
        try:
            self._stored.write(record)
        except OSError as error:
            raise refusals.files_failed(error) from None

    async def _prepare(self, argv: list[str], name: str) -> None:
        places = self.directories.root(name), self.directories.temporary(name)
        await prepare.run(self._server, self.environments, argv, *places)

    def _spawn(self, work: Awaitable[Any]) -> None:
        task = self._server.loop.create_task(quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
