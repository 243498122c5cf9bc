"""``Fleet``: workspaces on many machines."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import nullcontext
from secrets import token_hex
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary

from handrail.errors import RpcError, UsageError
from handrail.fleet import settings as given
from handrail.fleet.engine import Engine
from handrail.fleet.errors import FleetError
from handrail.fleet.hosts_engine import HostsEngine
from handrail.fleet.kept_lines import give_up_idle
from handrail.fleet.metrics import FleetMetrics, of_nodes
from handrail.fleet.node_set import NodeSet
from handrail.fleet.placing import Placing, Wish, node_of
from handrail.fleet.progress_bar import drawn
from handrail.fleet.reports import ENDED_NODES, FleetStatus, Outcome, WorkspaceInfo
from handrail.fleet.settings import Amounts, LineSettings, Shares, Size, Tls, Via
from handrail.fleet.task_map import MapOptions, TaskMap, Tasks, Work
from handrail.fleet.template_delivery import TemplateDelivery
from handrail.fleet.workspace import FleetWorkspace
from handrail.name_hints import NamesChecked
from handrail.workspace.arguments import AnyPath, Env, seconds
from handrail.workspace.profile import Sandbox
from handrail.workspace.uncancellable import to_the_end


class _Parts(NamedTuple):
    """What an open fleet stands on."""

    engine: Engine
    nodes: NodeSet
    delivery: TemplateDelivery
    placing: Placing


class Fleet(NamesChecked):
    """Workspaces on the nodes of a Ray cluster, or on a list of hosts.

    ``where`` is ``ray:auto``, ``ray:HOST:PORT`` (the cluster's address), ``ray://HOST:PORT`` (Ray
    Client), or a list of ``ws://``, ``wss://`` and ``ssh://`` URLs, with ``token``, one or by URL.
    With a ``name`` the fleet is joined or started, and outlives its drivers until ``down``; without
    one it ends with the ``async with``, or after ``lease`` seconds without a driver.

    On Ray, ``labels`` choose the nodes, ``share`` (``{"cpus": 8, "memory": "16GiB"}``; None: what
    is free) is reserved on each, and ``shares`` says how many: ``"nodes"``, one on each, also on
    those that join; or a number, or the least and the most, which Ray places, and for which an
    autoscaler adds machines.  ``quotas`` are by tenant, over all drivers.

    ``owner`` (unique by default) is whose workspaces these are: while this driver is connected
    they live, and ``lease`` seconds longer.  ``via`` maps a node's URL to the one to dial.
    ``tls``: ``auto`` encrypts beyond loopback.  Times are in seconds: ``request_timeout`` for an
    answer, ``recovery_window`` for a lost connection to come back, ``lost_after`` until a silent
    host is lost, ``orphan_after`` until a server without Ray ends everything, ``park_after`` until
    an idle workspace gives its connection up.
    """

    owner: str
    tenant: str
    name: str

    def __init__(
        self,
        where: str | list[str] = "ray:auto",
        *,
        name: str | None = None,
        owner: str | None = None,
        tenant: str = "default",
        labels: Mapping[str, str] | None = None,
        share: Mapping[str, Size] | None = None,
        shares: Shares = "nodes",
        quotas: Mapping[str, Mapping[str, Size]] | None = None,
        lease: float = 600.0,
        min_free: Size = "1GiB",
        state_dir: str | None = None,
        token: str | Mapping[str, str] | None = None,
        via: Via | None = None,
        tls: Tls = "auto",
        request_timeout: float = 30.0,
        recovery_window: float = 25.0,
        lost_after: float = 60.0,
        orphan_after: float = 120.0,
        park_after: float = 60.0,
    ) -> None:
        self._attaching = False
        if name is not None:
            given.check_name(name)
        if tls not in ("auto", "on", "off"):
            raise UsageError(f"tls is 'auto', 'on' or 'off', not {tls!r}")
        self.owner = owner or f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        self.tenant = tenant
        self.name = name or f"fleet-{token_hex(4)}"
        self._where = where
        cpus, memory = given.parse_share(share)
        self._settings = given.FleetSettings(
            name=self.name,
            named=name is not None,
            labels=given.texts(labels, "labels"),
            share_cpus=cpus,
            share_memory=memory,
            shares=given.parse_shares(shares),
            quotas=given.parse_quotas(quotas),
            lease=given.positive(lease, "lease"),
            min_free=given.size(min_free, "min_free"),
            state_dir=None if state_dir is None else os.path.abspath(state_dir),
            tls=tls,
            orphan_after=given.positive(orphan_after, "orphan_after"),
        )
        self._lines = LineSettings(
            owner=self.owner,
            tenant=tenant,
            lease=self._settings.lease,
            via=via,
            request_timeout=given.positive(request_timeout, "request_timeout"),
            recovery_window=given.positive(recovery_window, "recovery_window"),
            lost_after=given.positive(lost_after, "lost_after"),
            park_after=given.positive(park_after, "park_after"),
        )
        self._token = token
        self._spaces: dict[str, FleetWorkspace] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._parking: asyncio.Task[None] | None = None
        self._parts_: _Parts | None = None
        self._closed = False
        self._series = FleetMetrics()

    def __repr__(self) -> str:
        return f"<Fleet {self.name} at {self._where!r}>"

    # --- life -----------------------------------------------------------------------------

    @classmethod
    async def attach(cls, name: str, where: str | list[str] = "ray:auto", **same: Any) -> Fleet:
        """Join a fleet that is there; ``same`` are arguments of ``Fleet``.  Raises FleetUnknown."""
        fleet = cls(where, name=name, **same)
        fleet._attaching = True
        await fleet._open()
        return fleet

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> None:
        if self._closed:
            raise UsageError("the fleet is closed; make another Fleet")
        if self._parts_ is not None:
            return
        engine = self._make_engine()
        nodes = NodeSet(engine, self._lines)
        delivery = TemplateDelivery(nodes, engine)
        placing = Placing(nodes.by_id, engine, delivery.ensure, self._took, self._forget)
        placing.on_made = self._series.created
        nodes.on_change = placing.wake
        if isinstance(engine, HostsEngine):
            engine.nodes = nodes.by_id
        self._parts_ = _Parts(engine, nodes, delivery, placing)
        try:
            await engine.open(nodes.told)
            await nodes.begin()
        except BaseException:
            await to_the_end(self._let_go(ends=not self._settings.named))
            raise
        after = self._lines.park_after
        idle = give_up_idle(self._spaces, self._parts.nodes.all, after)
        self._parking = asyncio.get_running_loop().create_task(idle)

    def _make_engine(self) -> Engine:
        where = self._where
        if isinstance(where, str) and where.startswith("ray:"):
            from handrail.fleet.ray_engine import RayEngine

            return RayEngine(where, self._settings, self._lines, attach=self._attaching)
        return HostsEngine(
            [where] if isinstance(where, str) else list(where),
            name=self.name,
            owner=self.owner,
            token=self._token,
            via=self._lines.via,
            quotas=self._settings.quotas,
        )

    @property
    def _parts(self) -> _Parts:
        if self._parts_ is None or self._closed:
            raise UsageError("the fleet is not open; use it in an async with, or Fleet.attach")
        return self._parts_

    async def wait(self, nodes: int, timeout: float = 60.0) -> None:
        """Wait until so many nodes are ready; raises NoCapacity, VersionMismatch."""
        await self._parts.nodes.wait(nodes, timeout)

    async def detach(self) -> str:
        """Leave with everything running; returns the fleet's name, for ``attach``."""
        if not self._closed:
            await to_the_end(self._leave())
        return self.name

    async def _leave(self) -> None:
        await self._detach_all()
        await self._let_go(ends=False)

    async def _detach_all(self) -> None:
        await asyncio.gather(*(space.detach() for space in list(self._spaces.values())))

    async def close(self) -> None:
        """End this driver's workspaces; a fleet without a name ends too.  Can be repeated."""
        if not self._closed and self._parts_ is not None:
            await to_the_end(self._close())
        self._closed = True

    async def _close(self) -> None:
        await asyncio.gather(*(space.release() for space in list(self._spaces.values())))
        await self._let_go(ends=not self._settings.named)

    async def _let_go(self, *, ends: bool) -> None:
        self._closed = True
        if self._parking is not None:
            self._parking.cancel()
            await asyncio.gather(self._parking, return_exceptions=True)
        parts = self._parts_
        if parts is not None:
            await parts.delivery.close()
            await parts.nodes.close()
            await parts.engine.close(ends=ends)

    async def down(self) -> None:
        """End the fleet: all workspaces of all owners, and on Ray its servers and reservations."""
        await to_the_end(self._down(self._parts))

    async def _down(self, parts: _Parts) -> None:
        if parts.engine.silence_is_loss:  # its servers go on, with nothing of the fleet in them
            await self._sweep(lambda _: True)
            await parts.delivery.end_pools()
        await self._detach_all()
        await parts.engine.down()
        await self._let_go(ends=False)

    # --- workspaces -----------------------------------------------------------------------

    async def workspace(
        self,
        *,
        cpus: float = 1.0,
        memory: Size = "1GiB",
        labels: Mapping[str, str] | None = None,
        template: AnyPath | None = None,
        on: Mapping[str, str] | None = None,
        node: str | None = None,
        near: FleetWorkspace | None = None,
        sandbox: Sandbox = "workspace-write",
        env: Env | None = None,
        lease: float | None = None,
        timeout: float = 60.0,
        id: str | None = None,  # noqa: A002 (the name it has everywhere)
    ) -> FleetWorkspace:
        """Make a workspace on one of the nodes.

        ``cpus`` and ``memory`` are what it takes of the node's share.  ``template``: a directory, a
        tarball or ``sha256:HEX`` that it begins with.  ``on`` are labels of the node, ``node`` its
        id, ``near`` a workspace whose node is preferred.  ``sandbox`` and ``env`` are those of a
        workspace.  ``lease`` replaces the fleet's.  ``timeout`` is how long it may wait for room.
        The same ``id`` again is the same workspace.

        Raises NoCapacity, at once for what no node can ever hold; QuotaExceeded; TemplateError;
        NodeLost for a ``node`` that is lost; VersionMismatch when no node has our version.
        """
        # One at a time of an id: the second finds the workspace of the first.
        async with nullcontext() if id is None else self._turns.setdefault(id, asyncio.Lock()):
            if id is not None and (known := await self._same(id, sandbox, env)) is not None:
                return known
            wish = await self._wish(
                cpus=cpus,
                memory=memory,
                labels=labels,
                template=template,
                on=on,
                node=node,
                near=near,
                sandbox=sandbox,
                env=env,
                lease=lease,
                id=id,
            )
            return await self._parts.placing.place(wish, timeout)

    async def _wish(
        self,
        *,
        cpus: float = 1.0,
        memory: Size = "1GiB",
        labels: Mapping[str, str] | None = None,
        template: AnyPath | None = None,
        on: Mapping[str, str] | None = None,
        node: str | None = None,
        near: FleetWorkspace | None = None,
        sandbox: Sandbox = "workspace-write",
        env: Env | None = None,
        lease: float | None = None,
        id: str | None = None,  # noqa: A002 (the name it has everywhere)
    ) -> Wish:
        amounts = Amounts(given.millis(cpus), given.size(memory, "memory"))
        digest = None if template is None else await self._parts.delivery.put(template)
        return Wish(
            amounts=amounts,
            tenant=self.tenant,
            lease=self._lines.lease if lease is None else given.positive(lease, "lease"),
            labels=given.texts(labels, "labels"),
            template=digest,
            on=given.texts(on, "on"),
            node=node,
            near=node_of(near),
            sandbox=sandbox,
            env=env,
            id=id,
        ).checked()

    async def _same(self, name: str, sandbox: Sandbox, env: Env | None) -> FleetWorkspace | None:
        """The workspace of this id and owner, if there is one."""
        space = self._spaces.get(name)
        if space is not None and space.state in ("ready", "unreachable"):
            return space
        mine = await self.workspaces(owner=self.owner)
        if not any(one.id == name for one in mine):
            return None
        return await self._parts.placing.adopt(name, sandbox=sandbox, env=env)

    def _took(self, space: FleetWorkspace) -> None:
        self._spaces[space.id] = space

    def _forget(self, space: FleetWorkspace) -> None:
        if self._spaces.get(space.id) is space:
            del self._spaces[space.id]
        node = space.line.node
        node.lines.discard(space.line)
        node.count(space.amounts, -1)
        if self._parts_ is not None:
            self._parts_.engine.give_back(space.tenant, space.amounts)
            self._parts_.placing.wake()

    async def adopt(self, id: str) -> FleetWorkspace:  # noqa: A002 (the name it has everywhere)
        """Take over a workspace, with everything that runs in it or has ended there.

        A driver that still has it loses it.  Raises WorkspaceGone.
        """
        return await self._parts.placing.adopt(id)

    async def workspaces(
        self, *, owner: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[WorkspaceInfo]:
        """The workspaces of the fleet: all, those of an owner, those with these labels."""
        return await self._parts.nodes.workspaces(owner, given.texts(labels, "labels"))

    async def sweep(self, *, owner: str | None = None) -> int:
        """End what no driver holds, or all of one owner; returns how many."""
        return await self._sweep(lambda one: not one.held if owner is None else one.owner == owner)

    async def _sweep(self, chosen: Callable[[WorkspaceInfo], bool]) -> int:
        async def one(info: WorkspaceInfo) -> int:
            node = self._parts.nodes.find(info.node)
            try:
                await node.call("workspace/release", {"workspaceId": info.id, "owner": info.owner})
            except (RpcError, FleetError):
                return 0
            return 1

        found = [info for info in await self.workspaces() if chosen(info)]
        ended = await asyncio.gather(*(one(info) for info in found))
        self._parts.placing.wake()
        return sum(ended)

    # --- templates ------------------------------------------------------------------------

    async def put(self, template: AnyPath) -> str:
        """Send a template to all nodes; returns its digest, 64 hex digits.

        Raises TemplateError.
        """
        return await self._parts.delivery.put(template)

    async def pool(
        self, template: AnyPath, size: int, *, prepare: str | list[str] | None = None
    ) -> None:
        """Keep so many workspaces of a template ready, on all nodes together; 0 ends it.

        ``prepare``: a command that is run once in each.  Returns when all are ready.  Raises
        TemplateError, NoCapacity, and FleetError when ``prepare`` fails.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise UsageError(f"the size of a pool is a whole number, not {size!r}")
        argv = ["/bin/sh", "-c", prepare] if isinstance(prepare, str) else prepare
        delivery = self._parts.delivery
        await delivery.pool(await delivery.put(template), size, argv)

    # --- map ------------------------------------------------------------------------------

    def map(
        self,
        work: Work,
        tasks: Tasks,
        *,
        concurrency: int = 64,
        ordered: bool = False,
        window: int | None = None,
        idempotent: bool | Callable[[Any], bool] = False,
        retries: int = 2,
        timeout: float | None = None,
        key: Callable[[Any], str] | None = None,
        labels: Callable[[Any], Mapping[str, str]] | Mapping[str, str] | None = None,
        progress: Callable[[dict[str, int]], object] | bool | None = None,
        **needs: Any,
    ) -> AsyncGenerator[Outcome, None]:
        """Run ``work(workspace, task)`` for each task, in a fresh workspace each.

        At most ``concurrency`` at a time; tasks (an iterable, async too) are pulled as there is
        room: at most ``window`` (4 times that) are pulled and not consumed.  ``timeout`` (seconds)
        bounds each ``work``.  What it returns is the outcome's value, what it raises its error.
        When its node is lost the outcome is ``lost``, or, for a task that is ``idempotent`` (True,
        or a function of the task), it is tried elsewhere, ``retries`` times.  ``key(task)`` and
        ``labels(task)`` name it.  ``progress`` is called with the counts; True draws a bar.
        ``needs`` are arguments of ``workspace``.  Leaving the generator ends what runs.
        """
        if needs.get("id") is not None:
            raise UsageError("each task of a map has a workspace of its own, so id names none")
        patience = needs.pop("patience", 60.0)
        options = MapOptions(
            concurrency=concurrency,
            ordered=ordered,
            window=window,
            idempotent=idempotent,
            retries=retries,
            timeout=seconds(timeout, "timeout"),
            key=key,
            labels=labels,
            progress=drawn(tasks) if progress is True else progress or None,
            patience=patience,
        )
        run = TaskMap(
            self._parts.placing,
            work,
            tasks,
            lambda: self._wish(**needs),
            options,
            self._series.ended,
        )
        return run.run()

    async def gather(self, work: Work, tasks: Tasks, **same: Any) -> list[Outcome]:
        """``map`` as a list, in the order of the tasks."""
        return [outcome async for outcome in self.map(work, tasks, **{**same, "ordered": True})]

    # --- looking --------------------------------------------------------------------------

    async def status(self) -> FleetStatus:
        """The nodes of the fleet, and how it does."""
        engine, nodes, *_ = self._parts
        infos = await nodes.infos()
        return FleetStatus(
            name=self.name,
            state="stopping" if engine.stopping else nodes.state(),
            nodes=infos,
            workspaces=sum(one.workspaces for one in infos if one.state not in ENDED_NODES),
        )

    async def logs(self, node: str, lines: int = 200) -> str:
        """The last lines that the server of a node has written; raises FleetError for a host."""
        parts = self._parts
        if lines < 1:
            raise UsageError(f"lines is a number from 1 on, not {lines!r}")
        return await parts.engine.logs(parts.nodes.find(node).id, lines)

    async def metrics(self) -> str:
        """The metrics of all servers, with the label ``node``, and those of the fleet."""
        parts = self._parts
        status = await self.status()
        found = await of_nodes(parts.nodes.ready(), parts.engine)
        return found + self._series.text(status, parts.placing.waiting)

    def token(self, node: str, *, ttl: float = 3600.0) -> str | None:
        """A token for the server of a node, for so many seconds; None: it needs none."""
        parts = self._parts
        return parts.engine.token(parts.nodes.find(node).id, given.positive(ttl, "ttl"))
