"""Finds a node for a workspace and makes it there.

The node admits or refuses; this only decides which one to ask, in the order of ``node_choice.py``,
from what it last heard, and waits while all are full.  A workspace stays where it is, and is lost
when its node dies (``workspace.py``).  The registrar notices dead nodes (``actors.py``), and
``task_map.py`` runs tasks again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import msgspec

from handrail.errors import HandrailError, RpcError, UsageError
from handrail.fleet import node_choice
from handrail.fleet.data_line import DataLine
from handrail.fleet.engine import Engine
from handrail.fleet.errors import (
    FleetError,
    FleetUnknown,
    NoCapacity,
    NodeLost,
    NodeUnreachable,
    TemplateError,
    VersionMismatch,
    WorkspaceGone,
)
from handrail.fleet.node import Node
from handrail.fleet.reports import ENDED_NODES
from handrail.fleet.settings import Amounts
from handrail.fleet.workspace import FleetWorkspace, Made, native
from handrail.protocol.workspace import AdoptResult, WorkspaceResult
from handrail.version import __version__
from handrail.workspace.arguments import Env
from handrail.workspace.profile import Sandbox, find_profile
from handrail.workspace.variables import Variables

NO_ROOM = -32020
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
#: How long a node that has refused, or could not be reached, is not asked again.
_REST = 0.3
#: The longest wait for news before nodes are asked what is free.
_LOOK = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A workspace that is wanted."""

    amounts: Amounts
    tenant: str
    lease: float
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The digest.
    template: str | None = None
    on: Mapping[str, str] = field(default_factory=dict)
    node: str | None = None
    near: str | None = None
    sandbox: Sandbox = "workspace-write"
    env: Env | None = None
    id: str | None = None
    shared: bool = False

    def checked(self) -> Wish:
        """The same; raises UsageError for what no workspace can have."""
        find_profile(self.sandbox)
        Variables(self.env)
        if self.id is not None and not _ID.fullmatch(self.id):
            raise UsageError(
                f"the id of a workspace is 1 to 100 letters, digits, '.', '_' and '-', and begins"
                f" with a letter or digit; not {self.id!r}"
            )
        return self


def node_of(near: object) -> str | None:
    """The node of a workspace that another is to be near; raises UsageError."""
    name = getattr(near, "node", None)  # also of the blocking handle, in the needs of a map
    if near is not None and not isinstance(name, str):
        raise UsageError(f"near is a workspace of the fleet, not {near!r}; node= takes an id")
    return name


class Refused(Exception):
    """A node has no room now."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Placing:
    """Places workspaces of one driver on its nodes."""

    def __init__(
        self,
        nodes: dict[str, Node],
        engine: Engine,
        ensure: Callable[[Node, str], Any],
        made: Callable[[FleetWorkspace], None],
        forget: Callable[[FleetWorkspace], None],
    ) -> None:
        """``ensure(node, digest)`` brings a template to a node."""
        self._nodes = nodes
        self._engine = engine
        self._ensure = ensure
        self._made = made
        self._forget = forget
        self._rests: dict[str, float] = {}
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        #: Workspaces that wait for room.
        self.waiting = 0
        #: Called with the seconds that a workspace has taken.
        self.on_made: Callable[[float], None] | None = None

    def wake(self) -> None:
        """Something has changed: a node, or what is free."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    # --- a place --------------------------------------------------------------------------

    async def place(
        self, wish: Wish, timeout: float, line: DataLine | None = None
    ) -> FleetWorkspace:
        """Make a workspace; ``line``: one of a lane, which is used if its node has room.

        Raises NoCapacity, QuotaExceeded, NodeLost for a node that was named, TemplateError.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + timeout
        # A map waits for its tenant's quota; any other caller is told at once.
        await self._engine.reserve(wish.tenant, wish.amounts, exact=not wish.shared)
        self.waiting += 1
        try:
            refusals: dict[str, str] = {}
            while True:
                news = self._news
                found = await self._attempts(wish, refusals, line)
                if found is not None:
                    if self.on_made is not None:
                        self.on_made(loop.time() - began)
                    return found
                if line is not None:
                    await line.settle()  # what it holds may be what is waited for
                self._check_possible(wish)
                self._engine.demand(wish.amounts)
                left = deadline - loop.time()
                if left <= 0:
                    raise self._no_capacity(wish, refusals, timeout)
                await self._wait(news, min(left, _LOOK))
        except BaseException:
            self._engine.give_back(wish.tenant, wish.amounts)
            raise
        finally:
            self.waiting -= 1

    def _candidates(self, wish: Wish) -> list[Node]:
        if wish.node is not None:
            node = self._nodes.get(wish.node)
            if node is None:
                raise UsageError(f"the fleet has no node {wish.node!r}; see Fleet.status")
            if node.state == "mismatch":
                raise VersionMismatch(node.id, __version__, node.theirs)
            if node.state in ENDED_NODES:
                raise NodeLost(node.id, node.error)
            return [node]
        return [
            node
            for node in self._nodes.values()
            if node.state not in ENDED_NODES and node_choice.matches(node, wish.on)
        ]

    async def _attempts(
        self, wish: Wish, refusals: dict[str, str], line: DataLine | None
    ) -> FleetWorkspace | None:
        loop = asyncio.get_running_loop()
        asked: set[str] = set()
        while (node := self._choose(wish, asked, line)) is not None:
            asked.add(node.id)
            try:
                return await self._make(node, wish, line)
            except Refused as refusal:
                refusals[node.id] = refusal.what
            except (NodeLost, NodeUnreachable):
                refusals[node.id] = "nodes"
            except TemplateError as error:
                others = (one for one in self._candidates(wish) if one is not node)
                if error.kind != "missing" or not node_choice.have(others, wish.template):
                    raise
                refusals[node.id] = "nodes"  # and nothing has the archive to bring it there
            self._rests[node.id] = loop.time() + _REST
        return None

    def _choose(self, wish: Wish, asked: set[str], line: DataLine | None) -> Node | None:
        """The node to ask next."""
        now = asyncio.get_running_loop().time()

        def may_be(node: Node) -> bool:
            return (
                node.state == "ready"
                and node.id not in asked
                and self._rests.get(node.id, 0.0) <= now
                and node_choice.fits(node, wish.amounts)
            )

        near = wish.near
        if near is None and line is not None:
            node, near = line.node, line.node.id
            known = wish.node is None and self._nodes.get(near) is node
            if known and may_be(node) and node_choice.matches(node, wish.on):
                return node  # the first, however the others are
        ready = [node for node in self._candidates(wish) if may_be(node)]
        if not ready:
            return None
        return node_choice.ordered(ready, wish.amounts, wish.template, near)[0]

    def _check_possible(self, wish: Wish) -> None:
        """Raise for what no node can ever hold, and when no node is left that could."""
        if self._engine.stopping:
            raise FleetUnknown(f"the fleet {self._engine.name} has ended, or is about to")
        nodes = self._candidates(wish)
        if not nodes:
            odd = [one for one in self._nodes.values() if one.state == "mismatch"]
            others = [one for one in self._nodes.values() if one.state not in ENDED_NODES]
            if odd and not others:
                raise VersionMismatch(odd[0].id, __version__, odd[0].theirs)
            if self._engine.fixed:
                raise self._none_left(wish)
            if small := self._engine.too_small(wish.amounts):
                told = f"no share of the fleet is large enough ({node_choice.wanted(wish.amounts)})"
                raise NoCapacity(told, reason=small)
        impossible = node_choice.never(nodes, wish.amounts)
        if impossible is not None and not self._engine.may_grow(wish.amounts):
            raise NoCapacity(
                f"no node of the fleet is large enough ({node_choice.wanted(wish.amounts)}): "
                + node_choice.told(impossible),
                reason=node_choice.reasons(impossible),
                refusals=impossible,
            )

    def _none_left(self, wish: Wish) -> NoCapacity:
        ended = {
            node.id: node.error or node.state
            for node in self._nodes.values()
            if node_choice.matches(node, wish.on)
        }
        if ended:
            told = f"no node of the fleet is left: {node_choice.told(ended)}"
        else:
            told = f"no node of the fleet has the labels {dict(wish.on)}, and none joins later"
        return NoCapacity(told, reason="nodes", refusals=ended)

    def _no_capacity(self, wish: Wish, refusals: dict[str, str], timeout: float) -> NoCapacity:
        told = {
            node.id: "version"
            for node in self._nodes.values()
            if node.state == "mismatch" and node_choice.matches(node, wish.on)
        }
        for node in self._candidates(wish):
            if node.state != "ready":
                told[node.id] = "nodes"
            elif node.id in refusals and node_choice.fits(node, wish.amounts):
                told[node.id] = refusals[node.id]
            else:
                free = node.free
                pairs = (
                    ("cpus", wish.amounts.cpu_millis > free.cpu_millis),
                    ("memory", wish.amounts.memory_bytes > free.memory_bytes),
                    ("workspaces", free.workspaces < 1),
                )
                told[node.id] = ",".join(what for what, lacks in pairs if lacks) or refusals.get(
                    node.id, "nodes"
                )
        where = f" with {dict(wish.on)}" if wish.on else ""
        why = node_choice.told(told) if told else f"there is no node{where}"
        return NoCapacity(
            f"no room for a workspace ({node_choice.wanted(wish.amounts)}{where}) within"
            f" {timeout:g} s: {why}",
            reason=node_choice.reasons(told) if told else "nodes",
            refusals=told,
        )

    async def changed(self, seconds: float) -> None:
        """Wait until something has changed, at most so long."""
        await self._wait(self._news, min(seconds, _LOOK))

    async def _wait(self, news: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look())
            await asyncio.shield(self._looking)

    async def _look(self) -> None:
        """Ask the nodes what is free; once for all that wait."""

        async def one(node: Node) -> None:
            try:
                await node.refresh()
            except HandrailError:
                pass  # it is not ready any more, or will be asked again

        await asyncio.gather(*(one(n) for n in self._nodes.values() if n.state == "ready"))
        self.wake()

    # --- on one node ----------------------------------------------------------------------

    async def _make(self, node: Node, wish: Wish, line: DataLine | None) -> FleetWorkspace:
        """Make it there; raises Refused, NodeLost, NodeUnreachable, TemplateError."""
        name = wish.id or token_hex(8)
        node.count(wish.amounts, 1)
        own = None
        sent = False
        try:
            if line is None or line.node is not node or line.failure is not None:
                line = own = node.kept_lines.take() or DataLine(node)
                if not own.connected:
                    await own.begin()
            node.lines.add(line)  # now: when the node is lost, so is what is being made there
            sent = True
            try:
                raw = await self._create(line, name, wish)
            except RpcError as error:
                if not _lacks_template(error) or wish.template is None:
                    raise
                await self._ensure(node, wish.template)
                raw = await self._create(line, name, wish)
            return self._open(line, _as_made(name, wish, raw))
        except BaseException as error:
            node.count(wish.amounts, -1)
            if sent and line is not None and not isinstance(error, RpcError):
                # Behind its making, which may be late; and on the other line, if this one is gone.
                params = {"workspaceId": name, "owner": node.settings.owner}
                line.mention("workspace/release", params)
                _later(node.release(name))
            if own is not None:
                node.lines.discard(own)
                await own.leave()
            if isinstance(error, RpcError):
                raise _refusal(error, node) from error
            raise

    def _open(self, line: DataLine, made: Made) -> FleetWorkspace:
        space = FleetWorkspace(line, made, self._forget)
        self._made(space)
        return space

    async def _create(self, line: DataLine, name: str, wish: Wish) -> Any:
        try:
            made = await self._ask(line, name, wish)
        except RpcError:
            line.leaving = None  # released before anything else
            raise
        line.leaving = None
        return made

    async def _ask(self, line: DataLine, name: str, wish: Wish) -> Any:
        return await line.call(
            "workspace/create",
            {
                "workspaceId": name,
                "owner": line.node.settings.owner,
                "tenant": wish.tenant,
                "template": wish.template,
                "labels": dict(wish.labels),
                "cpuMillis": wish.amounts.cpu_millis,
                "memoryBytes": wish.amounts.memory_bytes,
                "leaseMs": int(wish.lease * 1000),
                "enter": True,
                "shared": wish.shared,
                "releases": line.leaving,
            },
            timeout=line.node.settings.request_timeout,
            repeat=True,
        )

    # --- one that is there ----------------------------------------------------------------

    async def adopt(
        self, name: str, *, sandbox: Sandbox = "workspace-write", env: Env | None = None
    ) -> FleetWorkspace:
        """Take over a workspace; raises WorkspaceGone, or NodeUnreachable while a node is."""
        nodes = [node for node in self._nodes.values() if node.state not in ENDED_NODES]
        found = await asyncio.gather(
            *(self._adopt_on(node, name) for node in nodes), return_exceptions=True
        )
        for node, result in zip(nodes, found, strict=True):
            if isinstance(result, AdoptResult):
                return await self._adopted(node, name, result, sandbox, env)
        for failure in found:
            if isinstance(failure, BaseException) and not isinstance(
                failure, WorkspaceGone | NodeLost
            ):
                raise failure
        raise WorkspaceGone(
            f"no workspace {name} in the fleet; it was released, or its lease is over"
        )

    async def _adopt_on(self, node: Node, name: str) -> AdoptResult:
        params = {"workspaceId": name, "owner": node.settings.owner}
        try:
            return msgspec.convert(await node.call("workspace/adopt", params), AdoptResult)
        except RpcError as error:
            data = error.data if isinstance(error.data, dict) else {}
            if data.get("what") == "gone":
                raise WorkspaceGone(error.message) from None
            raise

    async def _adopted(
        self, node: Node, name: str, found: AdoptResult, sandbox: Sandbox, env: Env | None
    ) -> FleetWorkspace:
        line = DataLine(
            node,
            session_id=found.session_id,
            resume_secret=found.resume_secret,
            adopted=True,
        )
        await line.begin()
        try:
            if found.session_id is None:
                params = {"workspaceId": name, "owner": node.settings.owner}
                await line.call("workspace/enter", params, repeat=True)
            made = Made(
                id=name,
                root=native(found.root),
                temporary=native(found.temporary),
                tenant=found.tenant,
                amounts=Amounts(found.cpu_millis, found.memory_bytes),
                template=found.template,
                warm=found.warm,
                enforced=found.enforced,
                labels=found.labels,
                sandbox=sandbox,
                env=env,
            )
            self._engine.take(made.tenant, made.amounts)
            node.lines.add(line)
            space = self._open(line, made)
            await space._find_processes()  # noqa: SLF001 (made by us)
        except BaseException:
            await line.leave()
            raise
        return space


def _as_made(name: str, wish: Wish, raw: Any) -> Made:
    result = msgspec.convert(raw, WorkspaceResult)
    return Made(
        id=name,
        root=native(result.root),
        temporary=native(result.temporary),
        tenant=wish.tenant,
        amounts=wish.amounts,
        template=wish.template,
        warm=result.warm,
        enforced=raw.get("enforced") is True,
        labels=wish.labels,
        sandbox=wish.sandbox,
        env=wish.env,
        shared=wish.shared,
    )


def _refusal(error: RpcError, node: Node) -> BaseException:
    data = error.data if isinstance(error.data, dict) else {}
    if error.code == NO_ROOM:
        return Refused(str(data.get("what") or "workspaces"))
    if data.get("what") == "template":
        return TemplateError(error.message, str(data.get("kind") or "missing"))
    if data.get("what") in ("gone", "stops"):
        # The workspace is being ended, or the server hands over: elsewhere, or later.
        return NodeUnreachable(node.id, error.message)
    return FleetError(f"node {node.id} makes no workspace: {error.message}")


def _lacks_template(error: RpcError) -> bool:
    data = error.data if isinstance(error.data, dict) else {}
    return data.get("what") == "template" and data.get("kind") == "missing"


#: Releases of workspaces that may have been made although their maker has given up.
_LATE: set[asyncio.Task[None]] = set()


def _later(work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _LATE.add(task)
    task.add_done_callback(_LATE.discard)
