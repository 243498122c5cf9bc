"""``handrail logs``: print the output of a detached process."""

from __future__ import annotations

import argparse
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING

from handrail.cli import detached, options

if TYPE_CHECKING:
    from handrail.cli.output_thread import Writer
    from handrail.secret_masks import Secrets
    from handrail.workspace.process import AsyncProcess
    from handrail.workspace.result import Event, Output

#: How long nothing may come before the last lines are known, with --follow.
_PAUSE = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Print the stored output of a detached process, running or ended: its stdout to stdout, its"
        " stderr to stderr."
    )
    detached.add_id(parser)
    add = parser.add_argument
    add("-f", "--follow", action="store_true", help="wait for more until its end")
    text = "only the last N lines of what is there"
    add("-n", "--tail", metavar="N", type=options.number_from(0), help=text)
    add("--since", metavar="T", type=options.seconds, help="only what is newer, such as 5m")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the output; returns 0 whatever the process's own exit was."""
    return options.to_end(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from handrail.cli.output_thread import Writer
    from handrail.secret_masks import NO_SECRETS

    async with detached.returned(args) as workspace:
        process = detached.find(workspace, args.id)
        secrets = workspace.variables.secrets
        writer = Writer(NO_SECRETS if args.json else secrets)
        printer = _Printer(writer, secrets, args)
        await _print(args, process, printer)
        await printer.settle()
        await writer.finish()
    return 0


async def _print(args: argparse.Namespace, process: AsyncProcess, printer: _Printer) -> None:
    """Print what is there; with --follow, also what comes, as it comes."""
    import asyncio

    from handrail.workspace.result import Gap

    async with aclosing(process.follow(since=args.since, wait=args.follow)) as events:
        while True:
            try:
                async with asyncio.timeout(_PAUSE if args.follow and printer.holds else None):
                    event = await anext(events)
            except TimeoutError:
                await printer.settle()  # nothing more is there: the last lines are known
                continue
            except StopAsyncIteration:
                break
            if not isinstance(event, Gap):  # the output after it says so too
                await printer.take(event)


class _Printer:
    """Prints events, or keeps the last lines of them until it is settled."""

    def __init__(self, writer: Writer, secrets: Secrets, args: argparse.Namespace) -> None:
        self._writer = writer
        self._secrets = secrets
        self._json: bool = args.json
        self._tail: int | None = args.tail
        self._held: deque[Output] = deque()
        self._lines = 0

    @property
    def holds(self) -> bool:
        """Whether it waits for the end of what is there."""
        return self._tail is not None

    async def take(self, event: Event) -> None:
        """Print an event now, or keep it."""
        from handrail.workspace.result import Exited, Output

        if isinstance(event, Exited):
            await self.settle()
            if self._json:
                line = options.json_line({"exit": options.exit_json(event.exit)})
                await self._writer.write(1, line)
        elif isinstance(event, Output):
            if self._tail is None:
                await options.write_event(self._writer, event, as_json=self._json)
                return
            self._held.append(event)
            self._lines += event.data.count(b"\n")
            while self._held and self._lines - self._held[0].data.count(b"\n") > self._tail:
                self._lines -= self._held.popleft().data.count(b"\n")

    async def settle(self) -> None:
        """Print the last lines; what follows is printed as it comes."""
        from dataclasses import replace

        from handrail.secret_masks import Masker

        tail, self._tail = self._tail, None
        if tail is None:
            return
        if self._held and self._held[-1].data[-1:] != b"\n":
            self._lines += 1  # an unfinished line counts
        while self._held:
            event = self._held.popleft()
            skipped = max(0, self._lines - tail)
            if skipped:
                parts = event.data.split(b"\n")
                gone = min(skipped, len(parts) - 1)
                self._lines -= gone
                rest = b"\n".join(parts[gone:])
                if tail == 0 or not rest:
                    continue
                masker = Masker(self._secrets)
                masker.cut()  # within a value of several lines, perhaps
                # A value that begins at its end is in the text of the next event.
                text = masker.feed(rest).decode("utf-8", "replace")
                event = replace(event, data=rest, text=text, omitted=0)
                self._writer.cut()
            await options.write_event(self._writer, event, as_json=self._json)
