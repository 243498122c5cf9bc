"""``handrail kill``: end a detached process, or send it a signal."""

from __future__ import annotations

import argparse

from handrail.cli import detached, options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = "End a detached process with all its descendants: SIGTERM, then SIGKILL."
    detached.add_id(parser)
    parser.add_argument(
        "--grace",
        metavar="S",
        type=options.seconds,
        default=2.0,
        help="time between TERM and KILL (default: %(default)s)",
    )
    parser.add_argument("-s", "--signal", metavar="NAME", help="only send this signal, such as hup")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """End it; returns 0 when it has ended, or the signal was sent."""
    return options.to_end(_run(args))


async def _run(args: argparse.Namespace) -> int:
    async with detached.returned(args, shows=False) as workspace:
        process = detached.find(workspace, args.id)
        if args.signal is not None:
            await process.signal(args.signal)
        else:
            await process.terminate(args.grace)
        if args.json:
            ended = options.exit_json(process.exit)
            options.print_json({"processId": process.id, "exit": ended})
    return 0
