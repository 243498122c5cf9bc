"""``workspace/*`` and ``template/add``: the workspaces that this server holds for a fleet.

Offered by a server that was given a directory for them (``--workspaces``); any other answers that
it has none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from handrail.errors import RpcError
from handrail.protocol import path_uri
from handrail.protocol.envelope import INVALID_PARAMS, METHOD_NOT_FOUND
from handrail.protocol.environment import Nothing
from handrail.protocol.workspace import (
    DEFAULT_TENANT,
    AdoptResult,
    CreateParams,
    HoldParams,
    HoldResult,
    ListParams,
    ListResult,
    PoolParams,
    PoolResult,
    ShareEntry,
    TemplateAddParams,
    WorkspaceEntry,
    WorkspaceParams,
    WorkspaceResult,
)
from handrail.server.workspaces.record import Record

if TYPE_CHECKING:
    from handrail.server.connection import Connection
    from handrail.server.workspaces.registry import Workspaces

#: The most labels of a workspace, and the most characters of a name and a value.
_MOST_LABELS = 64
_LONGEST_LABEL = 1024


def _workspaces(conn: Connection) -> Workspaces:
    found = conn.server.workspaces
    if found is None:
        raise RpcError(
            METHOD_NOT_FOUND,
            "this server holds no workspaces; start it with `handrail serve --workspaces DIR`",
        )
    return found


def hold(conn: Connection, params: HoldParams) -> HoldResult:
    workspaces = _workspaces(conn)
    workspaces.hold(conn, params.owner)
    return HoldResult(incarnation=workspaces.incarnation)


def create(
    conn: Connection, params: CreateParams
) -> WorkspaceResult | Coroutine[Any, Any, WorkspaceResult]:
    workspaces = _workspaces(conn)
    old, owner = params.releases, params.owner
    if old is not None and not workspaces.release_at_once(conn, old, owner):
        return _release_and_create(conn, workspaces, old, params)
    made = _create(conn, workspaces, params)
    if isinstance(made, Record):
        return _result(workspaces, made)
    return _brought(workspaces, made)


async def _release_and_create(
    conn: Connection, workspaces: Workspaces, old: str, params: CreateParams
) -> WorkspaceResult:
    await workspaces.release(conn, old, params.owner)
    made = _create(conn, workspaces, params)
    return _result(workspaces, made if isinstance(made, Record) else await made)


async def _brought(workspaces: Workspaces, making: Coroutine[Any, Any, Record]) -> WorkspaceResult:
    return _result(workspaces, await making)


def _create(
    conn: Connection, workspaces: Workspaces, params: CreateParams
) -> Record | Coroutine[Any, Any, Record]:
    _check_labels(params.labels)
    record = Record(
        id=params.workspace_id,
        owner=params.owner,
        tenant=_tenant(conn, params.tenant),
        lease=params.lease_ms / 1000,
        since=time.monotonic(),
        template=params.template,
        labels=params.labels,
        cpu_millis=params.cpu_millis,
        memory_bytes=params.memory_bytes,
        shared=params.shared,
    )
    return workspaces.create(conn, record, enter=params.enter)


def _tenant(conn: Connection, asked: str) -> str:
    """The tenant of a new workspace: that of the token, if it is a signed one."""
    own = conn.tenant
    if own is None or asked == own:
        return asked
    if asked != DEFAULT_TENANT:
        from handrail.server.workspaces.refusals import other_tenant

        raise other_tenant(asked, own)
    return own


def _check_labels(labels: dict[str, str]) -> None:
    long = any(len(text) > _LONGEST_LABEL for pair in labels.items() for text in pair)
    if len(labels) > _MOST_LABELS or long:
        raise RpcError(
            INVALID_PARAMS,
            f"`labels` has more than {_MOST_LABELS} names, or one with more than"
            f" {_LONGEST_LABEL} characters",
        )


async def enter(conn: Connection, params: WorkspaceParams) -> WorkspaceResult:
    workspaces = _workspaces(conn)
    record = await workspaces.enter(conn, params.workspace_id, params.owner)
    return _result(workspaces, record)


async def adopt(conn: Connection, params: WorkspaceParams) -> AdoptResult:
    workspaces = _workspaces(conn)
    record, secret = await workspaces.adopt(conn, params.workspace_id, params.owner)
    return AdoptResult(
        root=_uri(workspaces.directories.root(record.name)),
        temporary=_uri(workspaces.directories.temporary(record.name)),
        warm=record.warm,
        enforced=workspaces.enforces(record),
        tenant=record.tenant,
        template=record.template,
        labels=record.labels,
        cpu_millis=record.cpu_millis,
        memory_bytes=record.memory_bytes,
        lease_ms=int(record.lease * 1000),
        session_id=record.session if secret else None,
        resume_secret=secret or None,
    )


def release(conn: Connection, params: WorkspaceParams) -> Nothing | Coroutine[Any, Any, Nothing]:
    workspaces = _workspaces(conn)
    if workspaces.release_at_once(conn, params.workspace_id, params.owner):
        return Nothing()
    return _release(conn, workspaces, params)


async def _release(conn: Connection, workspaces: Workspaces, params: WorkspaceParams) -> Nothing:
    await workspaces.release(conn, params.workspace_id, params.owner)
    return Nothing()


async def listing(conn: Connection, params: ListParams) -> ListResult:
    workspaces = _workspaces(conn)
    free_disk = await workspaces.free_disk()
    total, free = workspaces.share.total, workspaces.share.free
    return ListResult(
        workspaces=[
            _entry(workspaces, record)
            for record in workspaces.listed(conn, params.owner, params.labels)
        ],
        share=ShareEntry(
            cpu_millis=total.cpu_millis,
            memory_bytes=total.memory_bytes,
            workspaces=total.workspaces,
            free_cpu_millis=free.cpu_millis,
            free_memory_bytes=free.memory_bytes,
            free_workspaces=free.workspaces,
        ),
        free_disk=free_disk,
        min_free=workspaces.min_free,
        pools=workspaces.pools.counts(conn.tenant),
        templates=_templates(conn, workspaces),
        incarnation=workspaces.incarnation,
        server_pid=os.getpid(),
        keeper_pid=conn.server.launcher.keeper_pid or 0,
    )


async def pool(conn: Connection, params: PoolParams) -> PoolResult:
    pools = _workspaces(conn).pools
    ready = await pools.resize(params.template, params.size, params.prepare, conn.tenant)
    return PoolResult(ready=ready)


async def template_add(conn: Connection, params: TemplateAddParams) -> Nothing:
    workspaces = _workspaces(conn)
    try:
        path = os.fsdecode(path_uri.to_path(params.path))
    except (path_uri.BadUri, path_uri.NotNative) as error:
        raise RpcError(INVALID_PARAMS, f"`path` is no URI of a file here: {error}") from None
    await workspaces.templates.add(params.digest, path, conn.tenant)
    return Nothing()


def _templates(conn: Connection, workspaces: Workspaces) -> list[str]:
    """Those that the client may know of: a digest is enough to have the files."""
    tenant = conn.tenant
    if tenant is None:
        return workspaces.templates.listed()
    used = {record.template for record in workspaces.listed(conn, None, {})}
    return workspaces.templates.listed_for(tenant, used | workspaces.pools.counts(tenant).keys())


def _uri(path: str) -> str:
    return path_uri.to_uri(os.fsencode(path))


def _result(workspaces: Workspaces, record: Record) -> WorkspaceResult:
    session = workspaces.session_of(record)
    return WorkspaceResult(
        root=_uri(workspaces.directories.root(record.name)),
        temporary=_uri(workspaces.directories.temporary(record.name)),
        warm=record.warm,
        enforced=workspaces.enforces(record),
        session_id=UNSET if session is None else session.id,
    )


def _entry(workspaces: Workspaces, record: Record) -> WorkspaceEntry:
    session = workspaces.session_of(record)
    return WorkspaceEntry(
        workspace_id=record.id,
        owner=record.owner,
        tenant=record.tenant,
        labels=record.labels,
        template=record.template,
        root=_uri(workspaces.directories.root(record.name)),
        warm=record.warm,
        enforced=workspaces.enforces(record),
        cpu_millis=record.cpu_millis,
        memory_bytes=record.memory_bytes,
        lease_ms=int(record.lease * 1000),
        held=workspaces.leases.is_held(record.held_by),
        session_id=None if session is None else session.id,
        running=0 if session is None else session.table.running,
        processes=0 if session is None else len(session.table),
    )


WORKSPACE_HANDLERS: dict[str, Callable[[Connection, Any], Any]] = {
    "workspace/hold": hold,
    "workspace/create": create,
    "workspace/enter": enter,
    "workspace/adopt": adopt,
    "workspace/release": release,
    "workspace/list": listing,
    "workspace/pool": pool,
    "template/add": template_add,
}
