"""``handrail logs``: what a process that was left running has written."""

from __future__ import annotations

import argparse

from handrail.cli import options, return_to


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "logs",
        help="print what a process has written",
        description="Print the output that is still kept, stdout to stdout, stderr to stderr.",
        allow_abbrev=False,
    )
    return_to.add_id(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until it ends")
    options.add_json(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print; 0 whatever the process's own exit was."""
    return options.to_end(_run(args))


async def _run(args: argparse.Namespace) -> int:
    import asyncio

    from handrail.cli.relay import write_all
    from handrail.workspace.result import Exited

    async with return_to.returned(args, looks=True) as workspace:
        process = return_to.find(workspace, args.id)
        events = aiter(process)
        while True:
            try:
                # What is retained is there already; only what is still to come has to be waited
                # for.
                async with asyncio.timeout(None if args.follow else 0.05):
                    event = await anext(events)
            except (TimeoutError, StopAsyncIteration):
                break
            if isinstance(event, Exited):
                if args.json:
                    options.print_json({"exit": options.exit_json(event.exit)})
            elif args.json:
                options.print_json(
                    {
                        "stream": event.stream,
                        "seq": event.seq,
                        "text": event.text,
                        "omitted": event.omitted,
                    }
                )
            else:
                write_all(1 if event.stream == "stdout" else 2, event.data)
    return 0
