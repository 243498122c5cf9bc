"""``handrail wait``: wait for the end of a detached process."""

from __future__ import annotations

import argparse

from handrail import exit_codes
from handrail.cli import detached, options
from handrail.cli.stdio import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Wait until a detached process has ended. Exit codes: the process's own; 124: it still runs"
        " after --timeout, and goes on."
    )
    detached.add_id(parser)
    parser.add_argument(
        "--timeout", metavar="T", type=options.seconds, help="wait at most this long, such as 5m"
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Wait; returns the exit code of the process, or 124."""
    return options.to_end(_run(args))


async def _run(args: argparse.Namespace) -> int:
    async with detached.returned(args, shows=False) as workspace:
        process = detached.find(workspace, args.id)
        info = await process.wait(args.timeout)
    if args.json:
        options.print_json({"processId": process.id, "exit": options.exit_json(info)})
    if info is not None:
        return options.told_exit(info)
    if not args.json:
        say(f"handrail: {process.id} still runs")
    return exit_codes.TIMED_OUT
