"""``handrail ps``: list detached processes."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from handrail.cli import detached, error_output, options
from handrail.cli.stdio import printable, say

if TYPE_CHECKING:
    from handrail.errors import HandrailError
    from handrail.workspace.detached_store import DetachedRecord

_COLUMNS = ("ID", "STATE", "AT", "ROOT", "COMMAND")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "List processes of `handrail run --detach` and of Workspace.detach()."
    options.add_place(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="ids only; ask no server")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List them; returns 0 also when a server did not answer, which is then their state."""
    from handrail.workspace import detached_store

    found = [one for one in detached_store.known() if args.at is None or one.at == args.at]
    if args.quiet:
        ids = [process_id for record in found for process_id in record.processes]
        if args.json:
            options.print_json(ids)
        else:
            print(*ids, sep="\n", end="\n" if ids else "")
        return 0
    return options.to_end(_run(args, found))


async def _run(args: argparse.Namespace, found: list[DetachedRecord]) -> int:
    import asyncio

    rows = await asyncio.gather(*(_ask(args, record) for record in found))
    lines = [line for group in rows for line in group]
    if args.json:
        options.print_json(lines)
        return 0
    table = [_COLUMNS, *((*map(str, line.values()),) for line in map(_shown, lines))]
    widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]).rstrip())
    for line in lines:
        if "why" in line:
            say(f"handrail: {line['id']}: {line['why']}")
    return 0


async def _ask(args: argparse.Namespace, record: DetachedRecord) -> list[dict[str, object]]:
    """Ask a workspace's server about it, and leave it as it was."""
    from handrail.errors import ExecutorTransportFailed, HandrailError
    from handrail.workspace import detached_store
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.detached_store import WorkspaceBusy

    try:
        workspace = await AsyncWorkspace.attach(
            record.id, token=options.token(args, record.at), request_timeout=10.0
        )
    except WorkspaceBusy:
        return [_line(record, name, "attached") for name in record.processes]
    except ExecutorTransportFailed as error:
        if "unknown session" in str(error):
            claim = detached_store.claim(record.id)
            claim.remove()
            claim.release()
            return []
        return _unreachable(record, error)
    except HandrailError as error:
        return _unreachable(record, error)
    lines = []
    try:
        for process in workspace.processes:
            info = process.exit
            state = "running" if info is None else info.kind.value
            lines.append({**_line(record, process.id, state), "exit": options.exit_json(info)})
    finally:
        await detached.leave(workspace, looks=True)
    return lines


def _unreachable(record: DetachedRecord, error: HandrailError) -> list[dict[str, object]]:
    why = error_output.sentence(error)
    return [{**_line(record, name, "unreachable"), "why": why} for name in record.processes]


def _line(record: DetachedRecord, process_id: str, state: str) -> dict[str, object]:
    return {
        "id": process_id,
        "state": state,
        "at": record.at,
        "root": record.root,
        "argv": record.processes.get(process_id, []),
    }


def _shown(line: dict[str, object]) -> dict[str, object]:
    argv = line["argv"]
    return {
        "id": line["id"],
        "state": line["state"],
        "at": line["at"],
        "root": printable(str(line["root"])),
        "command": printable(shlex.join(argv)) if isinstance(argv, list) else "",
    }
