"""``handrail exec``: run another command in a workspace that was left."""

from __future__ import annotations

import argparse

from handrail.cli import detached, options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Run another command in a detached workspace, on its machine, in its directory, its sandbox"
        " and with its variables. Exit codes as of `handrail run`."
    )
    detached.add_id(parser)
    parser.add_argument(
        "--timeout", metavar="T", type=options.seconds, help="end it after this long, such as 5m"
    )
    parser.add_argument(
        "--tty",
        action=argparse.BooleanOptionalAction,
        help="give it a terminal (default: when there is one here)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command")


def run(args: argparse.Namespace) -> int:
    """Run it; the command's exit code."""
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words or not words[0]:
        args.parser.error("name a command after --")
    return options.to_end(_run(args, words))


async def _run(args: argparse.Namespace, words: list[str]) -> int:
    from handrail.cli.commands import run

    args.at = args.limits = args.network = args.approver = None
    args.interactive = False
    detached.start_server(args.id)
    async with detached.returned(args) as workspace:
        return await run.stream(args, workspace, words)
