"""``FleetWorkspace``: a workspace on one node of a fleet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from handrail.errors import HandrailError, ProcessUnknown
from handrail.executor.trees.copy_between_machines import Copied
from handrail.fleet.data_line import DataLine, FleetExecutor
from handrail.fleet.errors import NodeLost, NodeUnreachable, WorkspaceGone
from handrail.fleet.node import Node
from handrail.fleet.reports import WorkspaceState
from handrail.fleet.settings import Amounts
from handrail.protocol import path_uri
from handrail.workspace.arguments import AnyPath, Env
from handrail.workspace.asynchronous import AsyncWorkspace
from handrail.workspace.process_follower import ProcessFollower
from handrail.workspace.profile import Sandbox
from handrail.workspace.uncancellable import to_the_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A workspace as its node has made it."""

    id: str
    root: str
    temporary: str
    tenant: str
    amounts: Amounts
    template: str | None = None
    warm: bool = False
    enforced: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    sandbox: Sandbox = "workspace-write"
    env: Env | None = None
    #: Whether its line is used for the next workspace after it.
    shared: bool = False


def native(uri: str) -> str:
    """The path of a URI."""
    return os.fsdecode(path_uri.to_path(uri))


class FleetWorkspace(AsyncWorkspace):
    """A directory on a node of a fleet, in which commands are run.

    ``Fleet.workspace`` and ``Fleet.adopt`` make it.  All that an ``AsyncWorkspace`` can do, it can;
    ``close``, which is ``release``, ends its processes and removes it.  When its node does not
    answer, calls raise NodeUnreachable, and later ones try again; when that is gone, they
    raise NodeLost for ever.
    """

    def __init__(
        self, line: DataLine, made: Made, forget: Callable[[FleetWorkspace], None]
    ) -> None:
        executor = FleetExecutor(line)
        super().__init__(
            made.root,
            sandbox=made.sandbox,
            env=made.env,
            labels=made.labels,
            executor=executor,
        )
        self._location.known_root = made.root
        self._location.temporary = made.temporary
        self._line = line
        self._made = made
        self._forget_it = forget
        self._is_released = False
        line.on_revival = self._find_processes

    def __repr__(self) -> str:
        return f"<FleetWorkspace {self.id} on {self.node}, {self.state}>"

    # --- what it is -----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Its id, for ``Fleet.adopt``."""
        return self._made.id

    @property
    def node(self) -> str:
        """The id of its node."""
        return self._line.node.id

    @property
    def template(self) -> str | None:
        """The digest of its template."""
        return self._made.template

    @property
    def temporary(self) -> str:
        """The directory that is the TMPDIR of its commands, on its node."""
        return self._made.temporary

    @property
    def warm(self) -> bool:
        """Whether it came from a warm pool."""
        return self._made.warm

    @property
    def enforced(self) -> bool:
        """Whether control groups enforce the resources it asked for."""
        return self._made.enforced

    @property
    def tenant(self) -> str:
        """Whose quota it counts for."""
        return self._made.tenant

    @property
    def amounts(self) -> Amounts:
        """What it takes of its node's share."""
        return self._made.amounts

    @property
    def root(self) -> str:
        """The directory on its node: absolute, without links."""
        return self._made.root

    @property
    def state(self) -> WorkspaceState:
        """ready, unreachable, released, expired or lost."""
        if self._is_released:
            return "released"
        failure = self._line.failure
        if isinstance(failure, NodeLost) or self._line.node.lost(self._line.incarnation):
            return "lost"
        if isinstance(failure, WorkspaceGone):
            return "expired"
        silent = isinstance(failure, NodeUnreachable) or self._line.unanswered
        return "unreachable" if silent else "ready"

    @property
    def line(self) -> DataLine:
        """Its connection."""
        return self._line

    # --- files ----------------------------------------------------------------------------

    async def upload(self, local: AnyPath, remote: AnyPath = ".") -> Copied:
        """Copy a file or a tree of this machine into the workspace; raises FilesError."""
        await self.executor()
        return await self.files.upload(local, remote)

    async def download(self, remote: AnyPath, local: AnyPath) -> Copied:
        """Copy a file or a tree of the workspace here, only to ``local`` and below it."""
        await self.executor()
        return await self.files.download(remote, local)

    # --- its line -------------------------------------------------------------------------

    async def reconnect(self) -> None:
        """Drop the connection and open another one.

        Processes go on; what they print meanwhile is there afterwards.  Raises NodeUnreachable,
        NodeLost, WorkspaceGone.
        """
        await self._line.reconnect()

    async def _find_processes(self) -> None:
        """Follow everything that its server knows of and that is not followed."""
        executor = await self.executor()
        assert isinstance(executor, FleetExecutor)  # noqa: S101 (given by us)
        for follower in list(self._processes):
            if follower.running:  # it was cut off, and is attached to anew
                follower.let_go()
                del self._processes[follower]
        known = {one.session.process_id for one in self._processes}
        for name, entry in (await executor.processes()).items():
            if name in known:
                continue
            try:
                session = await executor.attach(name)
            except ProcessUnknown:
                continue  # it has ended, and was one too many to be kept
            self._follow(
                ProcessFollower(
                    session,
                    tuple(_words(entry)),
                    executor.features,
                    sandboxed=self.profile is not None,
                    returned_to=True,
                    secrets=self.variables.secrets,
                    keep_output=self._keep_output,
                    name=entry.get("name"),
                    labels=entry.get("labels") or {},
                )
            )

    # --- the end --------------------------------------------------------------------------

    async def release(self) -> None:
        """End its processes and remove it; can be repeated, raises nothing but a cancellation."""
        await self.close()

    async def close(self) -> None:
        """End its processes and remove it; can be repeated, raises nothing but a cancellation."""
        if self._location.closed:
            return
        self._location.closed = True
        await to_the_end(self._release())

    async def _release(self) -> None:
        line, node = self._line, self._line.node
        gone = self.state in ("lost", "expired")
        self._let_go()
        try:
            if not gone:
                await self._tell(node)
        finally:
            self._is_released = not gone
            self._forget_it(self)
            if self._made.shared:
                line.on_revival = None
            else:
                await line.leave()

    def pass_on(self) -> bool:
        """Have it released by the making of the next one on its line; False: that cannot be."""
        line = self._line
        if self._location.closed or not self._made.shared or self.state != "ready":
            return False
        self._location.closed = True
        self._let_go()
        self._is_released = True
        self._forget_it(self)
        line.on_revival = None
        line.leaving = self.id
        return True

    async def _tell(self, node: Node) -> None:
        if not self._made.shared:
            await node.release(self.id)
            return
        # In the order of the line, whose session can then enter the next one.
        params = {"workspaceId": self.id, "owner": node.settings.owner}
        try:
            await self._line.call(
                "workspace/release", params, timeout=node.settings.request_timeout, repeat=True
            )
        except HandrailError:
            await node.release(self.id)

    async def detach(self, keep: float | str | None = None) -> str:
        """Leave it to its lease, which runs when this driver is gone; returns its id.

        Raises UsageError for ``keep``: the lease was set when it was made.
        """
        if keep is not None:
            from handrail.errors import UsageError

            raise UsageError("how long a workspace is kept is its lease; see Fleet.workspace")
        if not self._location.closed:
            self._location.closed = True
            self._let_go()
            self._forget_it(self)
            await self._line.leave()
        return self.id


def _words(entry: Mapping[str, Any]) -> list[str]:
    found = entry.get("argv") or entry.get("command") or []
    return [found] if isinstance(found, str) else list(found)
