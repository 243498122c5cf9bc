"""``SyncFleet``: blocking version of ``Fleet``, for scripts, threads and notebooks.

Every call runs its asynchronous counterpart on the background loop; ``work`` of ``map`` runs in
threads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from handrail.executor.trees.copy_between_machines import Copied
from handrail.fleet.fleet import Fleet
from handrail.fleet.reports import FleetStatus, Outcome, WorkspaceInfo, WorkspaceState
from handrail.fleet.settings import Size
from handrail.fleet.workspace import FleetWorkspace
from handrail.name_hints import NamesChecked
from handrail.workspace.arguments import AnyPath, Env
from handrail.workspace.profile import Sandbox
from handrail.workspace.synchronous import loop_thread
from handrail.workspace.synchronous.workspace import Workspace

_END = object()


class SyncFleetWorkspace(Workspace):
    """A directory on a node of a fleet; blocking version of ``FleetWorkspace``."""

    _twin: FleetWorkspace

    def __init__(self, twin: FleetWorkspace) -> None:
        super().__init__()
        self._twin = twin

    def __repr__(self) -> str:
        return repr(self._twin)

    @property
    def node(self) -> str:
        """The id of its node."""
        return self._twin.node

    @property
    def template(self) -> str | None:
        """The digest of its template."""
        return self._twin.template

    @property
    def warm(self) -> bool:
        """Whether it came from a warm pool."""
        return self._twin.warm

    @property
    def enforced(self) -> bool:
        """Whether control groups enforce the resources it asked for."""
        return self._twin.enforced

    @property
    def state(self) -> WorkspaceState:
        """ready, unreachable, released, expired or lost."""
        return self._twin.state

    def upload(self, local: AnyPath, remote: AnyPath = ".") -> Copied:
        """Copy a file or a tree of this machine into the workspace; raises FilesError."""
        return self._call(self._twin.upload(local, remote))

    def download(self, remote: AnyPath, local: AnyPath) -> Copied:
        """Copy a file or a tree of the workspace here, only to ``local`` and below it."""
        return self._call(self._twin.download(remote, local))

    def reconnect(self) -> None:
        """Drop the connection and open another one; see ``FleetWorkspace.reconnect``."""
        self._call(self._twin.reconnect())

    def release(self) -> None:
        """End its processes and remove it; can be repeated."""
        self.close()


class SyncFleet(NamesChecked):
    """Workspaces on the nodes of a Ray cluster, or on a list of hosts.

    The arguments are those of ``Fleet``; every call may be made from any thread.
    """

    def __init__(self, where: str | list[str] = "ray:auto", **options: Any) -> None:
        self._twin = loop_thread.call(_made(where, options))

    @classmethod
    def attach(cls, name: str, where: str | list[str] = "ray:auto", **same: Any) -> SyncFleet:
        """Join a fleet that is there; raises FleetUnknown."""
        twin = loop_thread.call(Fleet.attach(name, where, **same))
        fleet = cls.__new__(cls)
        fleet._twin = twin  # noqa: SLF001 (its own class)
        return fleet

    def __repr__(self) -> str:
        return repr(self._twin)

    def __enter__(self) -> Self:
        loop_thread.call(self._twin.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name of the fleet."""
        return self._twin.name

    @property
    def owner(self) -> str:
        """Whose workspaces these are."""
        return self._twin.owner

    @property
    def tenant(self) -> str:
        """Whose quota they count for."""
        return self._twin.tenant

    def wait(self, nodes: int, timeout: float = 60.0) -> None:
        """Wait until so many nodes are ready; raises NoCapacity, VersionMismatch."""
        loop_thread.call(self._twin.wait(nodes, timeout))

    def workspace(
        self,
        *,
        cpus: float = 1.0,
        memory: Size = "1GiB",
        labels: Mapping[str, str] | None = None,
        template: AnyPath | None = None,
        on: Mapping[str, str] | None = None,
        node: str | None = None,
        near: SyncFleetWorkspace | None = None,
        sandbox: Sandbox = "workspace-write",
        env: Env | None = None,
        lease: float | None = None,
        timeout: float = 60.0,
        id: str | None = None,  # noqa: A002 (the name it has everywhere)
    ) -> SyncFleetWorkspace:
        """Make a workspace on one of the nodes; see ``Fleet.workspace``."""
        made = self._twin.workspace(
            cpus=cpus,
            memory=memory,
            labels=labels,
            template=template,
            on=on,
            node=node,
            near=None if near is None else near._twin,  # noqa: SLF001 (of this module)
            sandbox=sandbox,
            env=env,
            lease=lease,
            timeout=timeout,
            id=id,
        )
        return SyncFleetWorkspace(loop_thread.call(made))

    def put(self, template: AnyPath) -> str:
        """Send a template to all nodes; returns its digest.  Raises TemplateError."""
        return loop_thread.call(self._twin.put(template))

    def pool(self, template: AnyPath, size: int, *, prepare: str | list[str] | None = None) -> None:
        """Keep so many workspaces of a template ready; see ``Fleet.pool``."""
        loop_thread.call(self._twin.pool(template, size, prepare=prepare))

    def map(
        self,
        work: Callable[[SyncFleetWorkspace, Any], Any],
        tasks: Iterable[Any],
        *,
        concurrency: int = 64,
        **same: Any,
    ) -> Generator[Outcome, None, None]:
        """Run ``work(workspace, task)`` in a thread for each task; see ``Fleet.map``.

        Leaving the generator ends what runs in the workspaces; a thread that is in ``work`` sees
        its next call fail.  An iterator of tasks runs in a thread too, and may block.
        """
        import asyncio

        # One more, for the tasks.
        threads = ThreadPoolExecutor(concurrency + 1, thread_name_prefix="handrail-map")

        async def in_thread(space: FleetWorkspace, task: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads, work, SyncFleetWorkspace(space), task)

        async def pulled(source: Iterator[Any]) -> AsyncGenerator[Any, None]:
            loop = asyncio.get_running_loop()
            while (task := await loop.run_in_executor(threads, next, source, _END)) is not _END:
                yield task

        async def begun() -> Any:
            source = pulled(tasks) if isinstance(tasks, Iterator) else tasks
            return self._twin.map(in_thread, source, concurrency=concurrency, **same)

        outcomes = loop_thread.call(begun())
        try:
            while (outcome := loop_thread.call(_next(outcomes))) is not None:
                yield outcome
        finally:
            loop_thread.call(outcomes.aclose())
            threads.shutdown(wait=False, cancel_futures=True)

    def gather(
        self, work: Callable[[SyncFleetWorkspace, Any], Any], tasks: Iterable[Any], **same: Any
    ) -> list[Outcome]:
        """``map`` as a list, in the order of the tasks."""
        return list(self.map(work, tasks, **{**same, "ordered": True}))

    def status(self) -> FleetStatus:
        """The nodes of the fleet, and how it does."""
        return loop_thread.call(self._twin.status())

    def workspaces(
        self, *, owner: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[WorkspaceInfo]:
        """The workspaces of the fleet: all, those of an owner, those with these labels."""
        return loop_thread.call(self._twin.workspaces(owner=owner, labels=labels))

    def adopt(self, id: str) -> SyncFleetWorkspace:  # noqa: A002 (the name it has everywhere)
        """Take over a workspace; raises WorkspaceGone."""
        return SyncFleetWorkspace(loop_thread.call(self._twin.adopt(id)))

    def sweep(self, *, owner: str | None = None) -> int:
        """End what no driver holds, or all of one owner; returns how many."""
        return loop_thread.call(self._twin.sweep(owner=owner))

    def logs(self, node: str, lines: int = 200) -> str:
        """The last lines that the server of a node has written."""
        return loop_thread.call(self._twin.logs(node, lines))

    def metrics(self) -> str:
        """The metrics of all servers, with the label ``node``, and those of the fleet."""
        return loop_thread.call(self._twin.metrics())

    def token(self, node: str, *, ttl: float = 3600.0) -> str | None:
        """A token for the server of a node, for so many seconds; None: it needs none."""
        return self._twin.token(node, ttl=ttl)

    def detach(self) -> str:
        """Leave with everything running; returns the fleet's name."""
        return loop_thread.call(self._twin.detach())

    def close(self) -> None:
        """End this driver's workspaces; a fleet without a name ends too."""
        loop_thread.call(self._twin.close())

    def down(self) -> None:
        """End the fleet: all workspaces of all owners, and on Ray its servers and reservations."""
        loop_thread.call(self._twin.down())


async def _made(where: str | list[str], options: dict[str, Any]) -> Fleet:
    return Fleet(where, **options)  # on the loop that it is for


async def _next(outcomes: Any) -> Outcome | None:
    found: Outcome | None = await anext(outcomes, None)
    return found
