"""``handrail ps``: list detached processes, running and ended."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import TYPE_CHECKING, Any

from handrail.cli import detached, options, text_table
from handrail.cli.stdio import say

if TYPE_CHECKING:
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.detached_store import DetachedRecord
    from handrail.workspace.process import AsyncProcess

_COLUMNS = ("ID", "STATE", "EXIT", "AGE", "CPU", "MEMORY", "NAME", "LABELS", "AT", "COMMAND")
_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "List processes of `handrail run --detach` and of Workspace.detach(): those that run, and"
        " those that have ended and were not looked at since."
    )
    options.add_place(parser)
    parser.add_argument("-a", "--all", action="store_true", help="also those that were looked at")
    detached.add_label(parser, "only those with this label; may be given again")
    parser.add_argument("-q", "--quiet", action="store_true", help="ids only; ask no server")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List them; returns 125 when --at names a server that does not answer."""
    from handrail.workspace import detached_store

    wanted = detached.labels(args)
    found = [one for one in detached_store.known() if args.at is None or one.at == args.at]
    if args.quiet:
        ids = [
            process_id
            for record in found
            for process_id, left in record.processes.items()
            if wanted.items() <= left.labels.items()
        ]
        if args.json:
            options.print_json(ids)
        else:
            print(*ids, sep="\n", end="\n" if ids else "")
        return 0
    return options.to_end(_run(args, found, wanted))


async def _run(
    args: argparse.Namespace, found: list[DetachedRecord], wanted: dict[str, str]
) -> int:
    if args.at is not None:
        await detached.check_server(args)
    detached.revive_server(*(record.at for record in found))
    lines = [
        line
        for line in await rows(args, found)
        if wanted.items() <= line["labels"].items() and (args.all or not line["seen"])
    ]
    if args.json:
        options.print_json(lines)
        return 0
    text_table.show(_COLUMNS, [_cells(line) for line in lines])
    for why in dict.fromkeys(str(line["why"]) for line in lines if line["why"] is not None):
        ids = [str(line["id"]) for line in lines if line["why"] == why]
        say(f"handrail: {', '.join(ids)}: {why}; `handrail prune` removes what is gone for good")
    return 0


async def rows(args: argparse.Namespace, found: list[DetachedRecord]) -> list[dict[str, Any]]:
    """A row for each process of these workspaces; their servers are asked."""
    import asyncio

    groups = await asyncio.gather(*(_ask(args, record) for record in found))
    return [line for group in groups for line in group]


async def _ask(args: argparse.Namespace, record: DetachedRecord) -> list[dict[str, Any]]:
    """Ask a workspace's server about it, and leave it as it was."""
    from handrail.errors import ExecutorTransportFailed, HandrailError
    from handrail.workspace import detach
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.detached_store import WorkspaceBusy

    try:
        workspace = await AsyncWorkspace.attach(
            record.id, token=options.token(args, record.at), request_timeout=_SECONDS
        )
    except WorkspaceBusy:
        return [_line(record, name, "attached") for name in record.processes]
    except ExecutorTransportFailed as error:
        if detach.is_over(error):
            detached.remove_row(record)
            return []
        return _unreachable(record, detached.short(record.at, error))
    except HandrailError as error:
        return _unreachable(record, str(error))
    try:
        facts = await _facts(workspace)
        return [
            _told(record, process, facts.get(process.id, {})) for process in workspace.processes
        ]
    finally:
        await detached.leave(workspace)


async def _facts(workspace: AsyncWorkspace) -> dict[str, dict[str, Any]]:
    """Ask the server for the processes that it still has."""
    from handrail.executor.remote import RemoteExecutor

    if all(process.stored for process in workspace.processes):
        return {}
    executor = await workspace.executor()
    return await executor.processes() if isinstance(executor, RemoteExecutor) else {}


def _told(record: DetachedRecord, process: AsyncProcess, facts: dict[str, Any]) -> dict[str, Any]:
    info = process.exit
    line = _line(record, process.id, "running" if info is None else info.kind.value)
    used = facts.get("usage") or {}
    if info is not None and info.usage is not None:
        usage = info.usage
        used = {
            "wallMs": usage.wall_ms,
            "userMs": usage.user_ms,
            "systemMs": usage.system_ms,
            "maxRssBytes": usage.max_rss_bytes,
        }
    cpu = None
    if used.get("userMs") is not None:
        cpu = (used["userMs"] + used["systemMs"]) / 1000
    return {
        **line,
        "exit": options.exit_json(info),
        "exitCode": None if info is None else info.code,
        "cpuSeconds": cpu,
        "memoryBytes": used.get("maxRssBytes"),
        "stored": process.stored,
        "seen": info is not None and line["seen"],
    }


def _unreachable(record: DetachedRecord, why: str) -> list[dict[str, Any]]:
    return [{**_line(record, name, "unreachable"), "why": why} for name in record.processes]


def _line(record: DetachedRecord, process_id: str, state: str) -> dict[str, Any]:
    left = record.processes[process_id]
    return {
        "id": process_id,
        "state": state,
        "exit": None,
        "exitCode": None,
        "ageSeconds": round(time.time() - left.started_at, 3) if left.started_at else None,
        "cpuSeconds": None,
        "memoryBytes": None,
        "name": left.name,
        "labels": left.labels,
        "at": record.at,
        "root": record.root,
        "argv": left.argv,
        "stored": False,
        "seen": left.seen and state not in ("attached", "unreachable"),
        "why": None,
    }


def _cells(line: dict[str, Any]) -> tuple[object, ...]:
    cpu = line["cpuSeconds"]
    return (
        line["id"],
        line["state"],
        "-" if line["exitCode"] is None else line["exitCode"],
        text_table.age(line["ageSeconds"]),
        "-" if cpu is None else f"{cpu:.1f}s",
        text_table.size(line["memoryBytes"]),
        line["name"] or "-",
        ",".join(f"{name}={value}" for name, value in line["labels"].items()) or "-",
        line["at"],
        shlex.join(line["argv"]),
    )
