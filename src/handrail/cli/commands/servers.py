"""``handrail servers``: list the servers of this user on this machine."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from handrail.cli import options, text_table
from handrail.cli.stdio import say

if TYPE_CHECKING:
    from handrail.server.recovery.running_servers import RunningServer

_COLUMNS = ("ADDRESS", "PID", "VERSION", "AGE", "SESSIONS", "PROCESSES", "STATE DIRECTORY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "List the servers of this user on this machine, those of `handrail run --detach` included."
    )
    options.add_token(parser)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """List them; returns 0 also when one does not answer."""
    return options.to_end(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from shlex import quote

    from handrail.results import store
    from handrail.server.recovery import running_servers

    found = running_servers.every()
    lines = await rows(args, [one for one in found if one.running])
    dead = [one for one in found if not one.running]
    if args.json:
        options.print_json(
            {"servers": lines, "dead": [{"address": d.address, "pid": d.pid} for d in dead]}
        )
        return 0
    text_table.show(
        _COLUMNS,
        [
            (
                line["address"],
                line["pid"],
                line["version"],
                text_table.age(line["ageSeconds"]),
                "?" if line["sessions"] is None else line["sessions"],
                "?" if line["processes"] is None else line["processes"],
                line["stateDir"],
            )
            for line in lines
        ],
    )
    waiting = [one for one in dead if store.keeper_in(one.state_dir)]
    for one in waiting:
        say(
            f"handrail: {one.address} is no longer running, and its keeper waits for it with its"
            f" processes; start it again with `handrail serve --state-dir {quote(one.state_dir)}`"
            " and the options that it had"
        )
    gone = ", ".join(one.address for one in dead if one not in waiting)
    if gone:
        say(f"handrail: no longer running: {gone}; `handrail prune` forgets them")
    return 0


async def rows(args: argparse.Namespace, servers: list[RunningServer]) -> list[dict[str, Any]]:
    """A row for each running server; what one does not say is None."""
    import asyncio

    return await asyncio.gather(*(_row(args, one) for one in servers))


async def _row(args: argparse.Namespace, server: RunningServer) -> dict[str, Any]:
    status = await ask(args, server.address)
    return {
        "address": server.address,
        "pid": server.pid,
        "version": server.version,
        "ageSeconds": round(time.time() - server.started_at, 3),
        "sessions": status.get("sessions"),
        "processes": status.get("processes"),
        "stateDir": server.state_dir,
        "own": server.is_own,
    }


async def ask(args: argparse.Namespace, address: str) -> dict[str, Any]:
    """Ask a server for its facts; {} if it does not answer us."""
    from handrail.errors import HandrailError
    from handrail.executor.client.session import ExecServerClient

    try:
        client = await ExecServerClient.connect(
            address, request_timeout=5.0, token=options.token(args, address)
        )
    except HandrailError:
        return {}
    try:
        found = await client.call("server/status", {}, timeout=5.0)
        return found if isinstance(found, dict) else {}
    except HandrailError:
        return {}
    finally:
        await client.close()
