"""``handrail prune``: remove results that were fetched or are old, and rows of dead servers."""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from handrail.cli import detached, error_output, options, text_table
from handrail.errors import HandrailError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from handrail.results.store import Stored
    from handrail.workspace.detached_store import DetachedRecord

_COLUMNS = ("WHAT", "ID", "AGE", "SIZE", "WHY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Remove stored results that were looked at or whose time is over, and the rows of servers"
        " that are gone and have left no result. What runs is never touched."
    )
    add = parser.add_argument
    add("-a", "--all", action="store_true", help="all stored results of processes that have ended")
    add(
        "--older-than",
        metavar="T",
        type=options.seconds,
        help="all that have ended longer ago, such as 3d",
    )
    add("-n", "--dry-run", action="store_true", help="only say what would be removed")
    options.add_token(parser)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Remove it; returns 0 also when there was nothing."""
    try:
        found = list(_found(args))
    except HandrailError as error:
        return error_output.tell(error, 125)
    for _, remove in found:
        if not args.dry_run:
            remove()
    lines = [line for line, _ in found]
    if args.json:
        options.print_json({"removed": lines, "dryRun": args.dry_run})
        return 0
    if lines:
        text_table.show(_COLUMNS, [_cells(line) for line in lines])
    total = sum(line["bytes"] for line in lines)
    verb = "would be removed" if args.dry_run else "removed"
    print(f"{len(lines)} {verb}, {text_table.size(total)}")
    return 0


def _found(args: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Callable[[], object]]]:
    """List the results and servers that can be removed, and how."""
    import asyncio

    from handrail.results import store
    from handrail.server.recovery import running_servers
    from handrail.server_settings import ResultBounds
    from handrail.workspace import detached_store

    bounds = ResultBounds.from_environment(os.environ)
    records = list(detached_store.known())
    left = {
        (process.session, process_id): process
        for record in records
        for process_id, process in record.processes.items()
    }
    going: set[tuple[str, str]] = set()
    for stored in store.every():
        about = stored.about
        known = left.get((about.session, about.process_id))
        why = _why(args, stored, bounds.keep, seen=known is not None and known.seen)
        if why is not None:
            going.add((about.session, about.process_id))
            age = time.time() - stored.changed_at
            yield _line("result", about.process_id, age, stored.size, why), stored.remove
    empty: list[tuple[DetachedRecord, float]] = []
    for record in records:
        kept = any(
            store.find(process.session, process_id) is not None
            and (process.session, process_id) not in going
            for process_id, process in record.processes.items()
        )
        age = time.time() - detached_store.changed_at(record)
        if not kept and (args.older_than is None or age >= args.older_than):
            empty.append((record, age))
    whys = asyncio.run(_gone(args, [record for record, _ in empty]))
    for (record, age), why in zip(empty, whys, strict=True):
        if why is not None:
            line = _line("workspace", record.id, age, 0, why)
            yield line, partial(detached.remove_row, record)
    for server in running_servers.every():
        if not server.running and not store.keeper_in(server.state_dir):
            age = time.time() - server.started_at
            yield _line("server", server.address, age, 0, "it does not run"), server.forget


def _why(args: argparse.Namespace, stored: Stored, keep: float, *, seen: bool) -> str | None:
    """Why a result may go; None: it stays."""
    if stored.in_use:
        return None
    from handrail.results import store

    age = time.time() - stored.changed_at
    if stored.about.exit is None and store.keeper_waits(stored.about):
        return None
    if args.older_than is not None:
        return "its age" if age >= args.older_than else None
    if age > keep:
        return "its time is over"
    if args.all:
        return "it has ended"
    return "it was looked at" if seen else None


async def _gone(args: argparse.Namespace, records: list[DetachedRecord]) -> list[str | None]:
    """Why each row may go: its server does not answer, or has ended the session; None: it stays."""
    import asyncio

    async def ask(record: DetachedRecord) -> str | None:
        try:
            return await detached.is_gone(args, record, everywhere=args.all)
        except HandrailError:
            return None

    return await asyncio.gather(*map(ask, records))


def _line(what: str, name: str, age: float, size: int, why: str) -> dict[str, Any]:
    return {
        "what": what,
        "id": name,
        "ageSeconds": round(age, 3),
        "bytes": size,
        "why": why,
    }


def _cells(line: dict[str, Any]) -> tuple[object, ...]:
    return (
        line["what"],
        line["id"],
        text_table.age(line["ageSeconds"]),
        text_table.size(line["bytes"]),
        line["why"],
    )
