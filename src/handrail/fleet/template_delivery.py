"""Brings templates to nodes, and keeps warm pools of them there."""

from __future__ import annotations

import asyncio
import contextlib

from handrail.errors import HandrailError, RpcError
from handrail.fleet.engine import Engine
from handrail.fleet.errors import (
    FleetError,
    NoCapacity,
    NodeLost,
    NodeUnreachable,
    TemplateError,
)
from handrail.fleet.node import Node
from handrail.fleet.node_set import NodeSet
from handrail.fleet.placing import NO_ROOM
from handrail.fleet.templates import Archive, Templates
from handrail.workspace.arguments import AnyPath

#: How long a node may take to verify and unpack a template, and to fill a pool.
_UNPACK_SECONDS = 600.0
_POOL_SECONDS = 600.0


class TemplateDelivery:
    """The templates of one driver, on their way to the nodes."""

    def __init__(self, nodes: NodeSet, engine: Engine) -> None:
        self._nodes = nodes
        self._engine = engine
        self._templates = Templates()
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def put(self, template: AnyPath) -> str:
        """Bring a template to all nodes; returns its digest.  Raises TemplateError."""
        archive = await self._templates.find(template)
        ready = self._nodes.ready()
        lacking = [node for node in ready if not _has(node, archive.digest)]
        if ready and not lacking:
            return archive.digest
        if archive.descriptor is not None:
            await self._engine.offer(archive)
        elif not await self._engine.known_template(archive.digest):
            if len(lacking) == len(ready):
                raise TemplateError(
                    f"no node has template {archive.digest}; give the directory or tarball",
                    "missing",
                )
            return archive.digest  # those that have it are enough
        found = await asyncio.gather(
            *(self._ensure(node, archive) for node in lacking), return_exceptions=True
        )
        for failure in found:
            if isinstance(failure, BaseException) and not isinstance(
                failure, NodeLost | NodeUnreachable
            ):
                raise failure
        return archive.digest

    async def ensure(self, node: Node, digest: str) -> None:
        """Bring a template to a node that lacks it; raises TemplateError."""
        await self._ensure(node, self._templates.known(digest))

    async def _ensure(self, node: Node, archive: Archive) -> None:
        """Bring it once, however many ask for it."""
        key = (node.id, archive.digest)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._bring(node, archive))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        await asyncio.shield(task)

    async def _bring(self, node: Node, archive: Archive) -> None:
        uri = await self._engine.deliver(node, archive)
        try:
            params = {"digest": archive.digest, "path": uri}
            await node.call("template/add", params, timeout=_UNPACK_SECONDS)
        except RpcError as error:
            raise _template_error(error) from None
        finally:
            await self._engine.discard(node, uri)
        await node.refresh()

    async def pool(self, digest: str, size: int, prepare: list[str] | None) -> None:
        """Keep so many workspaces ready on all nodes together.

        Raises TemplateError, NoCapacity, and FleetError when ``prepare`` fails.
        """
        nodes = sorted(self._nodes.ready(), key=lambda node: node.id)
        if not nodes:
            raise NoCapacity("no node is ready for a pool", reason="nodes")
        each, more = divmod(size, len(nodes))

        async def one(number: int, node: Node) -> None:
            wanted = {"template": digest, "size": each + (number < more), "prepare": prepare}
            try:
                await node.call("workspace/pool", wanted, timeout=_POOL_SECONDS)
            except RpcError as error:
                raise _pool_error(error, node) from None
            await node.refresh()

        await asyncio.gather(*(one(number, node) for number, node in enumerate(nodes)))

    async def end_pools(self) -> None:
        """End all pools of all nodes; raises nothing."""

        async def one(node: Node, digest: str) -> None:
            with contextlib.suppress(HandrailError):
                await node.call("workspace/pool", {"template": digest, "size": 0})

        await asyncio.gather(
            *(
                one(node, digest)
                for node in self._nodes.ready()
                for digest in (node.facts.pools if node.facts else {})
            )
        )

    async def close(self) -> None:
        """Stop what is under way, and remove the archives."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._templates.close()


def _has(node: Node, digest: str) -> bool:
    return node.facts is not None and digest in node.facts.templates


def _template_error(error: RpcError) -> FleetError:
    data = error.data if isinstance(error.data, dict) else {}
    return TemplateError(error.message, str(data.get("kind") or "corrupt"))


def _pool_error(error: RpcError, node: Node) -> FleetError:
    data = error.data if isinstance(error.data, dict) else {}
    if data.get("what") == "template":
        return _template_error(error)
    if error.code == NO_ROOM:
        what = str(data.get("what") or "disk")
        return NoCapacity(error.message, reason=what, refusals={node.id: what})
    return FleetError(f"node {node.id} makes no pool: {error.message}")
