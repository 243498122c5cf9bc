"""``handrail attach``: attach to a detached process, with its terminal."""

from __future__ import annotations

import argparse
import os

from handrail.cli import detached, options
from handrail.cli.stdio import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Show the output of a detached process so far and connect it to this terminal."
        " Exit codes: the process's own; 0 after --detach-key and 128+N after signal N, both of"
        " which leave it running."
    )
    detached.add_id(parser)
    parser.add_argument(
        "--detach-key",
        default="ctrl-]",
        metavar="KEY",
        help="key that ends attach (default: %(default)s)",
    )
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Attach until the process ends or is detached from."""
    from handrail.cli.terminal import read_key

    try:
        key = read_key(args.detach_key)
    except ValueError as error:
        args.parser.error(str(error))
    return options.to_end(_run(args, key))


async def _run(args: argparse.Namespace, key: bytes) -> int:
    from handrail.cli import terminal
    from handrail.cli.stdio_relay import Relay

    raw = terminal.is_there() and not args.json
    async with detached.returned(args) as workspace:
        process = detached.find(workspace, args.id)
        if raw:
            await _fit(process)
        relay = Relay(
            process,
            raw=raw,
            leaves=True,
            detach_key=key if os.isatty(0) else b"",
            as_json=args.json,
            secrets=workspace.variables.secrets,
        )
        info = await relay.run()
        if info is not None:
            await workspace.forget(process)  # the user has had all of it
    if args.json:
        options.print_json({"detached": info is None, "exit": options.exit_json(info)})
    elif info is None:
        start = "\r\n" if raw else ""
        say(f"{start}left running; `handrail attach {args.id}` comes back")
    if info is not None:
        return options.told_exit(info)
    return 128 + relay.left_by if relay.left_by else 0


async def _fit(process: object) -> None:
    """Give the process's terminal the size of the user's, if it has one."""
    from handrail.cli import terminal
    from handrail.errors import ResizeFailed
    from handrail.workspace.process import AsyncProcess

    assert isinstance(process, AsyncProcess)  # noqa: S101 (typed so for the import's sake)
    try:
        await process.resize(*terminal.size())
    except ResizeFailed:
        pass  # it has no terminal, or has ended
