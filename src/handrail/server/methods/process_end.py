"""process/signal, process/terminate, process/list."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from handrail.errors import RpcError
from handrail.process.child import Child
from handrail.process.running_usage import usage_now
from handrail.process.signal_names import signal_number
from handrail.process.starting import Starting
from handrail.protocol import path_uri
from handrail.protocol.envelope import INVALID_PARAMS
from handrail.protocol.environment import NOTHING, Nothing
from handrail.protocol.process import (
    ListParams,
    ListResult,
    ProcessInfo,
    SignalParams,
    TerminateParams,
    TerminateResult,
)
from handrail.server.methods import process_lookup
from handrail.server.notifier import exit_shape, shape_of, usage_shape

if TYPE_CHECKING:
    from handrail.server.connection import Connection


async def process_signal(conn: Connection, params: SignalParams) -> Nothing:
    number = signal_number(params.signal)
    child = process_lookup.entry(conn, params.process_id)
    reachable = isinstance(child, Child) and (child.running or params.tree)
    # The peer knows `interrupt` alone and refuses other names; our names are accepted where they
    # have an effect, so that a client of the peer gets the answers it expects for the rest.
    if number is not None and params.signal != "interrupt" and not reachable:
        raise RpcError(
            INVALID_PARAMS,
            f"process {params.process_id[:80]} is not running here, so it takes no"
            f" `{params.signal[:40]}`; ask process/list for those that are",
        )
    if number is None:
        raise RpcError(
            INVALID_PARAMS,
            f"no signal `{params.signal[:40]}` for this process; use `interrupt`, or for one that"
            " runs a name such as `term`",
        )
    if isinstance(child, Child):
        await child.signal(number, tree=params.tree)
    return NOTHING


def process_terminate(conn: Connection, params: TerminateParams) -> Any:
    # What must hold for a request behind this one happens now, not when a task runs.
    grace = min((params.grace_ms or 0) / 1000, process_lookup.LONGEST_WAIT)
    session = conn.session
    child = process_lookup.entry(conn, params.process_id)
    if isinstance(child, Starting):
        assert session is not None  # noqa: S101 (checked with the handshake)
        session.table.cancel_start(child)
        return TerminateResult(running=True)
    if child is None:
        forgotten: Iterable[Child] = ()
        if params.tree and session is not None:
            forgotten = session.table.left_behind(params.process_id)
        return _killed(forgotten, running=False)
    if not child.running:
        return _killed([child] if params.tree else (), running=False)
    if grace:
        child.ending.ask(grace)  # before the answer: it happens even if this server dies
        conn.server.spawn_task(child.see_out(grace))
        return TerminateResult(running=True)
    return _killed([child], running=True)


def _killed(children: Iterable[Child], *, running: bool) -> Any:
    killing = [child.ending.kill() for child in children]
    return _when_killed(killing, running) if killing else TerminateResult(running=running)


async def _when_killed(killing: list[Coroutine[Any, Any, None]], running: bool) -> TerminateResult:
    await asyncio.gather(*killing)
    return TerminateResult(running=running)


async def process_list(conn: Connection, params: ListParams) -> ListResult:
    session = conn.session
    assert session is not None  # noqa: S101 (checked with the handshake)
    orphans = await conn.server.launcher.orphans()
    rows = [_info(child, orphans.get(child.number, 0)) for child in session.table]
    for child in session.table.left_behind():
        if child.number in orphans:
            rows.append(_info(child, orphans[child.number]))
    for child in conn.server.sessions.detached(session.owner):
        rows.append(_info(child, orphans.get(child.number, 0), detached=True))
    if params.usage:
        await _add_usage(conn, rows)
    return ListResult(processes=rows)


async def _add_usage(conn: Connection, rows: list[ProcessInfo]) -> None:
    ended = {child.key: usage_shape(child) for child in conn.server.sessions.children()}
    now = time.time() * 1000

    def look() -> None:
        for row in rows:
            row.usage = ended.get(row.process_id)
            if row.pid is not None:
                row.usage = shape_of(usage_now(row.pid, max(0, int(now - row.started_at_ms))))

    await asyncio.to_thread(look)


def _info(child: Child, orphans: int, *, detached: bool = False) -> ProcessInfo:
    state = "running" if child.running else "closed" if child.closed else "exited"
    words, cwd = child.spec.command
    return ProcessInfo(
        process_id=child.key,
        name=child.spec.name,
        argv=[word.decode("utf-8", "replace") for word in words],
        cwd=path_uri.to_uri(cwd),
        tty=child.spec.tty,
        pid=child.pid if child.running else None,
        state=state,  # type: ignore[arg-type]
        exit=exit_shape(child),
        started_at_ms=int(child.started_at * 1000),
        output_bytes=child.output.log.bytes_total,
        next_seq=child.output.log.next_seq,
        orphans=orphans,
        held_open=child.ending.held_open,
        detached=detached,
        labels=dict(child.spec.labels),
    )
