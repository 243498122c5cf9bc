"""One node as a driver sees it: its control line, its state, and what is free there.

The control line holds the driver's workspaces of that node.  It is opened again whenever it ends;
each time the server names its incarnation, and another one than before says that everything that
was there is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from handrail.errors import (
    ExecutorTransportFailed,
    HandrailError,
    RemoteProtocolError,
    RpcError,
    TransportError,
)
from handrail.executor.client.rpc import CallTimedOut
from handrail.executor.client.session import ExecServerClient
from handrail.fleet.dialing import MOST_DIALS, GatedDialer
from handrail.fleet.engine import Engine, Member
from handrail.fleet.errors import NodeLost, NodeUnreachable, VersionMismatch
from handrail.fleet.kept_lines import KeptLines
from handrail.fleet.reports import ENDED_NODES, NodeInfo, NodeState
from handrail.fleet.settings import Amounts, LineSettings
from handrail.protocol.workspace import ListResult, WorkspaceEntry
from handrail.transport.websocket_handshake import HandshakeError
from handrail.version import __version__

if TYPE_CHECKING:
    from handrail.fleet.data_line import DataLine

log = logging.getLogger(__name__)

#: An owner that has nothing: a list of its workspaces tells of the node alone.
_NONE = "\x01nothing"
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
#: How long a node that has just lost its line is waited for before it is told as unreachable.
PATIENCE = 5.0
_UNAUTHORIZED = (401, 403)


class Node:
    """The server of one node."""

    def __init__(
        self,
        member: Member,
        engine: Engine,
        settings: LineSettings,
        changed: Callable[[], None],
    ) -> None:
        self.id = member.id
        self.member = member
        self.settings = settings
        self.incarnation = ""
        self.state: NodeState = "joining"
        self.error = ""
        #: Of the last list.
        self.facts: ListResult | None = None
        #: What is free, as far as this driver knows.
        self.free = Amounts()
        self.lines: set[DataLine] = set()
        #: Those of them that are in no workspace.
        self.kept_lines = KeptLines()
        #: Workspaces of ours that could not be released when they should have been.
        self.unreleased: set[str] = set()
        self.version = ""
        #: What stands in the way of working with it, for VersionMismatch.
        self.theirs = ""
        self._engine = engine
        self._changed = changed
        self._gate = asyncio.Semaphore(MOST_DIALS)
        self._control: ExecServerClient | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._loss: NodeLost | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Node {self.id} {self.state}>"

    # --- life -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the control line, and keep it open."""
        if self._task is None and self.member.state == "ready":
            self._task = asyncio.get_running_loop().create_task(self._keep())

    def told(self, member: Member) -> None:
        """The engine tells something new of it."""
        if not member.url:  # not known to another registrar yet; the server is where it was
            before = self.member
            member = replace(member, url=before.url, certificate=before.certificate)
        moved = member.url != self.member.url or member.certificate != self.member.certificate
        self.member = member
        if member.state in ENDED_NODES and self.state not in ENDED_NODES:
            self._end(member.state, member.error or f"its engine says that it is {member.state}")
            return
        if self.state not in ENDED_NODES:
            if member.state != "ready" and self._task is None:
                self.state = member.state
            if moved and self._control is not None:
                self._wake.set()
            self.begin()

    async def close(self) -> None:
        """Close the control line; the workspaces are left to their lease."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.kept_lines.close()
        await self._drop_control()

    def keep(self, line: DataLine) -> bool:
        """Keep a line that is in no workspace for the next one; False: it is to be closed."""
        if self._closed or self.state != "ready" or not self.kept_lines.put(line):
            return False
        self.lines.add(line)
        return True

    def _end(self, state: NodeState, why: str) -> None:
        self.state = state
        self.error = why
        self._loss = NodeLost(self.id, why)
        if self._task is not None:
            self._task.cancel()
        self._lose_lines(self._loss)
        self._up.set()
        self._changed()

    def _lose_lines(self, error: NodeLost) -> None:
        for line in list(self.lines):
            line.lose(error.again())

    # --- the control line -----------------------------------------------------------------

    async def _keep(self) -> None:
        try:
            await self._keep_line()
        finally:
            await self._drop_control()

    async def _keep_line(self) -> None:
        loop = asyncio.get_running_loop()
        pause, since = _FIRST_PAUSE, loop.time()
        while True:
            try:
                await self._open()
            except VersionMismatch as error:
                self.theirs = error.theirs
                self._end("mismatch", str(error))
                return
            except (HandrailError, OSError) as error:
                self._missed(error)
                if self._engine.silence_is_loss and (
                    loop.time() - since > self.settings.lost_after
                ):
                    self._end("lost", f"silent for {self.settings.lost_after:g} s ({error})")
                    return
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
                continue
            pause = _FIRST_PAUSE
            await self._watch()
            since = loop.time()
            await self._drop_control()
            if self.state == "ready":
                self.state, self.error = "unreachable", "its control line has ended"
            self._changed()
            for line in list(self.lines):
                self._probe(line)

    def _missed(self, error: Exception) -> None:
        self.error = str(error)
        refused = isinstance(error, HandshakeError) and error.status in _UNAUTHORIZED
        if refused and self.state == "joining":
            self._end("failed", f"its server refuses us: {error}; give the right token")
        if self.state == "ready":
            self.state = "unreachable"
            self._changed()

    async def _open(self) -> None:
        """Connect and hold; raises what stands in the way."""
        timeout = self.settings.request_timeout
        client = await ExecServerClient.connect(
            self.dialer(control=True, reconnects=False),
            client_name="handrail-fleet-control",
            detach_ttl=0.0,
            request_timeout=min(timeout, 10.0) if self.state == "ready" else timeout,
        )
        try:
            self._check_version(client)
            held = await client.call(
                "workspace/hold", {"owner": self.settings.owner}, timeout=timeout
            )
            await self._met(str(held["incarnation"]))
            self._control = client
            self._take(await self._list(client, owner=_NONE))
        except BaseException:
            self._control = None
            await client.close(end=False)
            raise
        self.state, self.error = "ready", ""
        self._up.set()
        self._changed()
        for name in list(self.unreleased):
            await self.release(name)

    def _check_version(self, client: ExecServerClient) -> None:
        info = client.info
        self.version = str(info.get("executorVersion") or "")
        if "workspaces" not in client.extensions:
            theirs = "a server that holds no workspaces (handrail serve --workspaces DIR)"
            raise VersionMismatch(self.id, __version__, theirs)
        if self.version.split(".")[:2] != __version__.split(".")[:2]:
            raise VersionMismatch(self.id, __version__, f"handrail {self.version}")

    async def _met(self, incarnation: str) -> None:
        before, self.incarnation = self.incarnation, incarnation
        if before and before != incarnation:
            self.unreleased.clear()
            why = "its server and keeper have died, and with them everything that ran there"
            for line in list(self.lines):
                if line.incarnation != incarnation:
                    line.lose(NodeLost(self.id, why))

    async def _watch(self) -> None:
        """Return when the line has ended, or carries nothing any more."""
        client = self._control
        assert client is not None  # noqa: S101 (just opened)
        ended = _Ended()
        client.follow("control", ended)
        rt = self.settings.request_timeout
        while True:
            self._wake.clear()
            waits = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(self._wake.wait())]
            try:
                await asyncio.wait(waits, timeout=rt / 4, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
            if ended.over or self._wake.is_set() or client.out_of_reach:
                return
            try:
                self._take(await self._list(client, owner=_NONE, timeout=rt / 2))
            except (HandrailError, OSError) as error:
                log.info("node %s does not answer: %s", self.id, error)
                return

    def _probe(self, line: DataLine) -> None:
        task = asyncio.get_running_loop().create_task(line.probe(self.settings.request_timeout / 4))
        _PROBES.add(task)
        task.add_done_callback(_PROBES.discard)

    async def _drop_control(self) -> None:
        client, self._control = self._control, None
        if self.state not in ENDED_NODES:
            self._up.clear()
        if client is not None:
            await client.close(end=False)

    # --- what others ask ------------------------------------------------------------------

    def dialer(self, *, control: bool = False, reconnects: bool = True) -> GatedDialer:
        """A dialer to its server; ``control``: for what is of all tenants."""
        dialer = self._engine.dialer(self.member, control=control)
        return GatedDialer(dialer, self._gate, reconnects=reconnects)

    def lost(self, incarnation: str) -> NodeLost | None:
        """The loss of what was there in that life of its server; None: it is not lost."""
        if self._loss is not None:
            return NodeLost(self.id, self._loss.why)
        if incarnation and self.incarnation and incarnation != self.incarnation:
            return NodeLost(self.id, "its server and keeper have died")
        return None

    def unreachable(self, why: str) -> NodeUnreachable:
        return NodeUnreachable(self.id, why)

    async def confirm(self, seconds: float = 10.0) -> None:
        """Ask for the incarnation of now, at most so long; raises nothing."""
        try:
            async with asyncio.timeout(seconds):
                while self._loss is None:
                    await self._up.wait()
                    client = self._control
                    try:
                        if client is not None:
                            held = await client.call(
                                "workspace/hold", {"owner": self.settings.owner}
                            )
                            await self._met(str(held["incarnation"]))
                            return
                    except HandrailError:
                        pass  # the line has just ended; the next one will tell
                    await asyncio.sleep(_FIRST_PAUSE)
        except TimeoutError:
            pass

    async def settled(self, seconds: float) -> bool:
        """Wait until it is ready or ended, at most so long; whether it is ready."""
        if self.state != "ready" or self._control is None:
            try:
                async with asyncio.timeout(seconds):
                    await self._up.wait()
            except TimeoutError:
                pass
        return self.state == "ready" and self._control is not None

    async def call(self, method: str, params: Any, *, timeout: float | None = None) -> Any:
        """Make a call on the control line; raises RpcError, NodeLost or NodeUnreachable.

        It is made again on the next line when one ends, so it has to be one that may be.
        """
        limit = self.settings.request_timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        while True:
            ready = not self._closed and await self.settled(max(0.0, deadline - loop.time()))
            if (lost := self.lost("")) is not None:
                raise lost
            client = self._control
            if not ready or client is None or loop.time() > deadline:
                raise self.unreachable(self.error or "there is no line to it")
            try:
                return await client.call(method, params, timeout=deadline - loop.time())
            except CallTimedOut as late:
                raise self.unreachable(str(late)) from late
            except (TransportError, ExecutorTransportFailed):
                await asyncio.sleep(_FIRST_PAUSE)

    async def list(
        self, owner: str | None = None, labels: dict[str, str] | None = None
    ) -> ListResult:
        """List the workspaces of its server; raises NodeLost or NodeUnreachable."""
        found = _listed(await self.call("workspace/list", {"owner": owner, "labels": labels or {}}))
        self._take(found)
        return found

    async def refresh(self) -> None:
        """Ask what is free; raises NodeLost or NodeUnreachable."""
        await self.list(_NONE)

    async def _list(
        self, client: ExecServerClient, *, owner: str, timeout: float | None = None
    ) -> ListResult:
        limit = self.settings.request_timeout if timeout is None else timeout
        return _listed(
            await client.call("workspace/list", {"owner": owner, "labels": {}}, timeout=limit)
        )

    async def release(self, name: str) -> None:
        """Release a workspace of this driver; raises nothing: a lost one needs no release."""
        params = {"workspaceId": name, "owner": self.settings.owner}
        try:
            await self.call("workspace/release", params)
        except NodeUnreachable:
            self.unreleased.add(name)
            return
        except NodeLost:
            pass
        except RpcError as error:
            log.info("workspace %s on node %s is not released: %s", name, self.id, error)
        self.unreleased.discard(name)

    # --- resources ------------------------------------------------------------------------

    def _take(self, facts: ListResult) -> None:
        self.facts = facts
        share = facts.share
        self.free = Amounts(share.free_cpu_millis, share.free_memory_bytes, share.free_workspaces)

    def count(self, amounts: Amounts, sign: int) -> None:
        """Note that a workspace was placed here, or is gone."""
        free = self.free
        self.free = Amounts(
            free.cpu_millis - sign * amounts.cpu_millis,
            free.memory_bytes - sign * amounts.memory_bytes,
            free.workspaces - sign * amounts.workspaces,
        )

    @property
    def total(self) -> Amounts | None:
        """Its share; None: not known yet."""
        if self.facts is None:
            member = self.member
            if not member.cpu_millis and not member.memory_bytes:
                return None
            return Amounts(member.cpu_millis, member.memory_bytes)  # its server has not answered
        share = self.facts.share
        return Amounts(share.cpu_millis, share.memory_bytes, share.workspaces)

    def info(self) -> NodeInfo:
        """What is known of it now."""
        member, facts = self.member, self.facts
        more: dict[str, Any] = {}
        if facts is not None:
            share = facts.share
            more = {
                "cpus": share.cpu_millis / 1000,
                "memory": share.memory_bytes,
                "free_cpus": share.free_cpu_millis / 1000,
                "free_memory": share.free_memory_bytes,
                "free_disk": facts.free_disk,
                "workspaces": share.workspaces - share.free_workspaces,
                "pools": dict(facts.pools),
                "templates": tuple(facts.templates),
                "server_pid": facts.server_pid or None,
                "keeper_pid": facts.keeper_pid or None,
            }
        return NodeInfo(
            id=self.id,
            state=self.state,
            url=member.url,
            engine_id=member.engine_id,
            labels=dict(member.labels),
            version=self.version or member.version,
            supervisor_pid=member.supervisor_pid,
            error="" if self.state == "ready" else self.error or member.error,
            **more,
        )


#: Tasks are kept by their users.
_PROBES: set[asyncio.Task[None]] = set()


class _Ended:
    """A follower that only hears of the end of its line."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    async def wait(self) -> None:
        await self._over.wait()

    def notified(self, method: str, params: Any) -> None: ...

    async def catch_up(self, rpc: Any) -> None: ...

    def failed(self, error: HandrailError) -> None:
        self._over.set()

    def asked(self, params: Any, respond: Any) -> None: ...


def _listed(raw: Any) -> ListResult:
    try:
        return msgspec.convert(raw, ListResult)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"a workspace/list that does not read: {error}") from None


__all__ = ["PATIENCE", "Node", "WorkspaceEntry"]
