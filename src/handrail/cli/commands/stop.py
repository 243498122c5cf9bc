"""``handrail stop``: stop the server that ``handrail run --detach`` has started, or another."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from handrail.cli import error_output, options
from handrail.errors import HandrailError, UsageError

if TYPE_CHECKING:
    from handrail.server.recovery.running_servers import RunningServer

_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Stop the server of this user that `handrail run --detach` has started, or the one at an"
        " address. Its processes are ended; their results stay stored."
    )
    parser.add_argument(
        "address", metavar="ADDRESS", nargs="?", help="as `handrail servers` prints it"
    )
    options.add_token(parser)
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Stop it; returns 1 when there is none."""
    import asyncio

    from handrail.cli.commands import servers
    from handrail.server.recovery import running_servers

    try:
        server = _chosen(args.address)
        running = asyncio.run(servers.ask(args, server.address)).get("processes")
        if not running_servers.stop(server, _SECONDS):
            raise UsageError(
                f"the server at {server.address} (pid {server.pid}) has not stopped within"
                f" {_SECONDS:.0f} s; look into its log"
            )
        server.forget()
    except HandrailError as error:
        return error_output.tell(error, 1)
    if args.json:
        options.print_json(
            {"address": server.address, "pid": server.pid, "endedProcesses": running}
        )
    else:
        ended = f"; {running} processes were ended" if running else ""
        print(f"stopped the server at {server.address} (pid {server.pid}){ended}")
    return 0


def _chosen(address: str | None) -> RunningServer:
    from handrail.server.recovery import running_servers

    if address is not None:
        return running_servers.choose(address)
    own = [one for one in running_servers.every() if one.running and one.is_own]
    if not own:
        raise UsageError(
            "no server of `handrail run --detach` is running; `handrail servers` lists the others,"
            " and `handrail stop ADDRESS` stops one of them"
        )
    return own[0]
