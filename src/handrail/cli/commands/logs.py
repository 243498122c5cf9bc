"""``handrail logs``: print the output of a detached process."""

from __future__ import annotations

import argparse
from contextlib import aclosing

from handrail.cli import detached, options

#: Without --follow: at most what a server retains, and at most so many seconds for all of it or, in
#: between, for the next piece.
_RETAINED = 1 << 20
_PATIENCE, _PAUSE = 1.0, 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Print the last MiB of a detached process's output, each stream on our own."
    )
    detached.add_id(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more until its end")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the output; returns 0 whatever the process's own exit was."""
    return options.to_end(_run(args))


async def _run(args: argparse.Namespace) -> int:
    import asyncio

    from handrail.cli.output_thread import Writer
    from handrail.workspace.result import Exited, Gap
    from handrail.workspace.secrets import NO_SECRETS

    async with (
        detached.returned(args, looks=True) as workspace,
        aclosing(detached.find(workspace, args.id).follow()) as events,
    ):
        secrets = workspace.variables.secrets
        writer = Writer(NO_SECRETS if args.json else secrets)
        loop = asyncio.get_running_loop()
        patience, room = (None, None) if args.follow else (_PATIENCE, _RETAINED)
        while room is None or room > 0:
            try:
                # Retained output is there already; only new output would have to be waited for.
                began = loop.time()
                async with asyncio.timeout(None if patience is None else min(patience, _PAUSE)):
                    event = await anext(events)
            except (TimeoutError, StopAsyncIteration):
                break
            if isinstance(event, Gap):
                continue  # the output after it says so too
            if patience is not None and room is not None:
                patience -= loop.time() - began
                room -= 0 if isinstance(event, Exited) else len(event.data)
            if isinstance(event, Exited):
                if args.json:
                    line = options.json_line({"exit": options.exit_json(event.exit)})
                    await writer.write(1, line)
            else:
                await options.write_event(writer, event, as_json=args.json)
        await writer.finish()
    return 0
